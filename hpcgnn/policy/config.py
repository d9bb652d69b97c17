"""The policies that choose bit-widths and staleness of messages, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.base.settings import Composed, Registry, merged, setting
from hpcgnn.policy.settings import FIXED, KNOWN_BITS, KNOWN_STALENESS, OFF

# Subclasses of hpcgnn.policy.base.BitsPolicy and of its StalenessPolicy; that module imports this one.
BITS_POLICIES: Registry[Any] = Registry("bits", KNOWN_BITS)
STALENESS_POLICIES: Registry[Any] = Registry("staleness", KNOWN_STALENESS)
SAFE_BITS = 8  # the bit-width while a policy has no data yet, or after it has failed


@dataclass(frozen=True, init=False)
class PolicyConfig(Composed):
    """The policies that choose the bit-width of each row and the exchanges that use stale rows.

    Example:
        ``PolicyConfig("adaqp", "pipeline", group_rows=50)``

    Attributes:
        bits: ``fixed``, which gives all rows the bit-width of ``MessageConfig``; or ``uniform``, ``adaqp``, ``sylvie``,
            ``pipeqs``, or the name of a policy that a program has registered.
        staleness: ``off``, ``pipeline``, ``sylvie``, ``pipeqs``, or the name of a registered policy.
        own: the dataclasses of the settings that only these policies have. Usually these settings are given by name instead.

    Raises:
        HpcgnnError: for an unknown policy, and for a setting that neither policy uses.
    """

    bits: str = setting(FIXED, name=None, choices=lambda: tuple(BITS_POLICIES))
    staleness: str = setting(
        OFF,
        lambda: (
            "Stale rows: use received rows of earlier epochs while new ones are being sent. "
            f"{STALENESS_POLICIES.summaries()}. Evaluations never use stale rows and wait for messages that are under way, so "
            "choose --eval-every above 1."
        ),
        choices=lambda: tuple(STALENESS_POLICIES),
    )
    own: tuple[Any, ...] = ()
    by_place = 2

    @property
    def bits_policy(self) -> Any:
        """The class of ``bits``."""
        return BITS_POLICIES[self.bits]

    @property
    def staleness_policy(self) -> Any:
        """The class of ``staleness``."""
        return STALENESS_POLICIES[self.staleness]

    def sections(self) -> tuple[type, ...]:
        """As :meth:`Composed.sections`."""
        return tuple(dict.fromkeys((*BITS_POLICIES.settings(self.bits), *STALENESS_POLICIES.settings(self.staleness))))

    @classmethod
    def all_sections(cls) -> dict[type, list[str]]:
        """As :meth:`Composed.all_sections`."""
        bits = ((f"--bits {name}", BITS_POLICIES.settings(name)) for name in BITS_POLICIES)
        staleness = ((f"--staleness {name}", STALENESS_POLICIES.settings(name)) for name in STALENESS_POLICIES)
        return merged((*bits, *staleness))

    def chosen(self) -> str:
        """As :meth:`Composed.chosen`."""
        bits = "fixed bits" if self.bits == FIXED else f"--bits {self.bits}"
        return f"{bits} with --staleness {self.staleness}"

    @property
    def is_off(self) -> bool:
        """Return whether no policy decides anything during training."""
        return (self.bits, self.staleness) == (FIXED, OFF)

    @property
    def keeps_rows(self) -> bool:
        """Return whether received rows are needed after their epoch."""
        return self.staleness_policy.reuses_rows or self.compares

    @property
    def compares(self) -> bool:
        """Return whether received rows are compared with the rows of the previous message."""
        return self.bits_policy.compares_rows or self.staleness_policy.compares_rows

    @property
    def needs_clock(self) -> bool:
        """Return whether decisions depend on the seconds of epochs."""
        return self.bits_policy.needs_clock or self.staleness_policy.needs_clock
