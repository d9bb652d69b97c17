"""The policies that decide about messages, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.policy.settings import FIXED, KNOWN_BITS, KNOWN_STALENESS, OFF
from hpcgnn.registry import Registry
from hpcgnn.settings import Composed, merged, setting

# Subclasses of hpcgnn.policy.base.BitsPolicy and of its StalenessPolicy; that module imports this one.
BITS_POLICIES: Registry[Any] = Registry("bits", KNOWN_BITS)
STALENESS_POLICIES: Registry[Any] = Registry("staleness", KNOWN_STALENESS)
SAFE_BITS = 8  # of policies that know nothing yet, or have failed


@dataclass(frozen=True, init=False)
class PolicyConfig(Composed):
    """``PolicyConfig("adaqp", "pipeline", group_rows=50)``. bits: ``fixed`` (as MessageConfig has them) or a policy's name.
    staleness: ``off`` or a policy's name. own: what these two have beside it.

    Raises:
        HpcgnnError: for policies that there are not, and for a setting that these do not use.
    """

    bits: str = setting(FIXED, name=None, choices=lambda: tuple(BITS_POLICIES))
    staleness: str = setting(
        OFF,
        lambda: (
            f"Use rows of an epoch before while new ones travel. {STALENESS_POLICIES.summaries()}. Evaluations are always "
            "fresh, and what travels is waited for before each: choose --eval-every above 1."
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
        """Whether nothing is decided while training."""
        return (self.bits, self.staleness) == (FIXED, OFF)

    @property
    def keeps_rows(self) -> bool:
        """Whether received rows are needed after their epoch."""
        return self.staleness_policy.reuses_rows or self.compares

    @property
    def compares(self) -> bool:
        """Whether received rows are compared with those of the message before."""
        return self.bits_policy.compares_rows or self.staleness_policy.compares_rows

    @property
    def needs_clock(self) -> bool:
        """Whether what is decided goes by the seconds of epochs."""
        return self.bits_policy.needs_clock or self.staleness_policy.needs_clock
