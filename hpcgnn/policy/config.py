"""The policies that choose bit-widths and staleness of messages, by name, and their settings. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hpcgnn.base.settings import Composed, LazyEntry, Registry, setting

FIXED, UNIFORM, OFF, AUTO = "fixed", "uniform", "off", "auto"


@dataclass(frozen=True)
class StaleSettings:
    """The correction of stale rows, and PipeGCN's smoothing of them."""

    stale_correction: str = setting(
        "neighbours",
        "Correction of stale rows: add the change of a node's neighbours on its own rank since the rows were sent, or none "
        "(docs/studies/staleness/report.md).",
        choices=("neighbours", "none"),
    )
    smoothing: str = setting(
        "none",
        "Replace stale features, stale gradients or both by a moving average over epochs (PipeGCN).",
        choices=("none", "features", "gradients", "both"),
    )
    smoothing_decay: float = setting(
        0.95,
        "Weight of earlier epochs in the moving average of --smoothing.",
        least=0,
        most=1,
        used_if=lambda own: own.smoothing != "none",
        users="--smoothing features, gradients and both use it",
    )


@dataclass(frozen=True)
class PeriodSettings:
    """Settings of policies that decide periodically."""

    bits_period: int = setting(
        50, "Number of epochs from one assignment of bit-widths, or trial, to the next.", least=1
    )


@dataclass(frozen=True)
class BudgetSettings:
    """The argument of ``--bits uniform:BYTES``: bytes of all ranks' messages in an epoch in which every exchange sends."""

    epoch_bytes: int | None = setting(None, name="", least=1)


@dataclass(frozen=True)
class AdaQPSettings:
    """AdaQP's settings (its Table 8), and the file with the link costs, which are measured if there is no such file."""

    variance_weight: float = setting(
        0.5,
        "Weight of the quantization variance against the communication time (lambda in the paper): 0 minimises the time, 1 "
        "the variance.",
        least=0,
        most=1,
    )
    time_scale: str = setting(
        "epoch",
        "Time against which the communication time is weighed: that of an epoch, so that bit-widths grow on a fast network and "
        "shrink on a slow one; or its own range between the fewest and the most bits (span), as in the paper.",
        choices=("epoch", "span"),
    )
    group_rows: int = setting(100, "Number of rows in a group; all rows of a group get the same bit-width.", least=1)
    link_costs: Path | None = setting(
        None,
        "JSON file with the costs of messages (seconds per byte and per message); if there is none, the costs are measured for "
        "each assignment and written to it.",
        default_in_words="link_costs.json in the run folder",
    )
    refit_links: bool = setting(
        False, "Measure the costs of messages even if the file --link-costs exists, and overwrite it.", is_kept=False
    )


@dataclass(frozen=True)
class DescentSettings:
    """The measure of the descent of the loss (Sylvie §V-A)."""

    loss_memory: float = setting(
        0.9,
        "Weight of earlier epochs in the running average of the loss, which --descent-rule printed uses (lambda in the paper).",
        least=0,
        most=1,
    )
    loss_window: int = setting(
        5,
        "Number of epochs that lie between the two loss descent rates that are compared (delta in the paper). --descent-rule "
        "corrected fits each of them to so many epochs.",
        least=1,
    )
    descent_rule: str = setting(
        "corrected",
        "Rule about the descent of the loss: more bits if it has fallen to less than half, and stale rows while the loss falls, "
        "both beyond its noise (corrected); or both by the sign of the rate in the paper's equation (printed).",
        choices=("corrected", "printed"),
    )


@dataclass(frozen=True)
class ImportanceSettings:
    """The rows that get more bits (Sylvie §IV-A), and the fewest bits."""

    importance: str = setting(
        "error",
        "Order in which rows get more bits: by the error that rounding them causes in the sums (error), or by the in-degree of "
        "their nodes as in the paper (degree).",
        choices=("error", "degree"),
    )
    least_bits: int = setting(
        2,
        "Fewest base bits, with which training begins: the mean of all rows with --importance error, and the fewest bits of a "
        "row with degree. The paper has 1.",
        choices=(1, 2, 4, 8),
    )


@dataclass(frozen=True)
class DriftSettings:
    """The threshold of both parts of B_CHECK (PipeQS §3.5)."""

    drift_threshold: float = setting(
        0.1,
        "Threshold of the cosine distance between rows and those of the last message, without the part that noise explains (E in "
        "the paper). Rows are sent before they are expected to be farther apart, and bit-widths follow it, too.",
        least=0,
    )


@dataclass(frozen=True)
class DriftBitsSettings:
    """Settings of B_CHECK's part about bit-widths."""

    drift_rule: str = setting(
        "error",
        "Rule that changes the bit-width: by the rounding error that does not average out while rows move (error), by the "
        "paper's Eq. 7 with the change of an epoch (corrected), or by Eq. 7 as printed, which can only raise bit-widths.",
        choices=("error", "corrected", "printed"),
    )


@dataclass(frozen=True)
class AgeSettings:
    """The bound on the age of rows."""

    most_stale_epochs: int = setting(
        4, "Maximum staleness: largest number of epochs between the sending of rows and their last use.", least=1
    )


@dataclass(frozen=True)
class BypassSettings:
    """Settings of S_CHECK, and of B_CHECK's part about staleness."""

    bypass: str = setting(
        "age",
        "Exchanges that send nothing in an epoch: all until their rows are expected to be --drift-threshold away from those in "
        "use (age), all whose last two messages were closer than that (drift), or only the latter whose last message had not "
        "arrived when the previous epoch ended (late).",
        choices=("age", "drift", "late"),
    )


KNOWN_BITS = {
    FIXED: LazyEntry("hpcgnn.policy.simple", ""),
    UNIFORM: LazyEntry(
        "hpcgnn.policy.simple",
        "random, 2, 4 or 8 for each row, equally often, or with BYTES such that an epoch has messages of this size",
        (PeriodSettings, BudgetSettings),
    ),
    "adaqp": LazyEntry(
        "hpcgnn.policy.adaqp",
        "weighs quantization variance against communication time",
        (PeriodSettings, AdaQPSettings),
    ),
    "sylvie": LazyEntry(
        "hpcgnn.policy.sylvie",
        "follows the errors of rows and the descent of the loss",
        (DescentSettings, ImportanceSettings, PeriodSettings),
    ),
    "pipeqs": LazyEntry(
        "hpcgnn.policy.pipeqs", "follows the change of rows between messages", (DriftSettings, DriftBitsSettings)
    ),
    AUTO: LazyEntry(
        "hpcgnn.policy.auto",
        "the most bits that cost no time, by trial, for the rows with the largest errors",
        (PeriodSettings,),
    ),
}
KNOWN_STALENESS = {
    OFF: LazyEntry("hpcgnn.policy.simple", "never"),
    "pipeline": LazyEntry(
        "hpcgnn.policy.simple", "in every epoch, rows of the previous epoch (PipeGCN)", (StaleSettings,)
    ),
    "sylvie": LazyEntry(
        "hpcgnn.policy.sylvie",
        "rows of the previous epoch while the loss clearly falls, and then those of the same epoch",
        (DescentSettings, StaleSettings),
    ),
    "pipeqs": LazyEntry(
        "hpcgnn.policy.pipeqs",
        "rows of up to --most-stale-epochs epochs ago, while they change little",
        (DriftSettings, AgeSettings, BypassSettings, StaleSettings),
    ),
    "sancus": LazyEntry(
        "hpcgnn.policy.pipeqs",
        "rows of up to --most-stale-epochs epochs ago while they change little, else fresh rows",
        (DriftSettings, AgeSettings, StaleSettings),
    ),
    AUTO: LazyEntry(
        "hpcgnn.policy.auto",
        "rows of the previous epoch where they move by less than their noise, if a trial shows that this saves time",
        (PeriodSettings, StaleSettings),
    ),
}


# Subclasses of hpcgnn.policy.base.BitsPolicy and of its StalenessPolicy; that module imports this one.
BITS_POLICIES: Registry[Any] = Registry("bits", KNOWN_BITS)
STALENESS_POLICIES: Registry[Any] = Registry("staleness", KNOWN_STALENESS)
FALLBACK_BITS = 8  # the bit-width while a policy has no data yet, or after it has failed


@dataclass(frozen=True, init=False)
class PolicyConfig(Composed):
    """The policies that choose the bit-width of each row and the exchanges that use stale rows.

    Example:
        ``PolicyConfig("adaqp", "pipeline", group_rows=50)``

    Attributes:
        bits: the name of a policy; ``fixed`` gives all rows the bit-width of ``MessageConfig``.
        staleness: the name of a policy; ``off`` never uses stale rows.
        own: the dataclasses of the settings that only these policies have. Usually these settings are given by name instead.

    Raises:
        HpcgnnError: for an unknown policy, and for a setting that neither policy uses.
    """

    bits: str = setting(FIXED, name="", choices=lambda: tuple(BITS_POLICIES))
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
    registries: ClassVar = {
        "bits": (BITS_POLICIES, "--bits "),
        "staleness": (STALENESS_POLICIES, "--staleness "),
    }

    @property
    def bits_policy(self) -> Any:
        """The class of ``bits``."""
        return BITS_POLICIES[self.bits]

    @property
    def staleness_policy(self) -> Any:
        """The class of ``staleness``."""
        return STALENESS_POLICIES[self.staleness]

    def chosen(self) -> str:
        """As :meth:`Composed.chosen`."""
        bits = "fixed bits" if self.bits == FIXED else f"--bits {self.bits}"
        return f"{bits} with --staleness {self.staleness}"

    @property
    def is_off(self) -> bool:
        """Return whether no policy decides anything during training."""
        return (self.bits, self.staleness) == (FIXED, OFF)

    @property
    def compares_every(self) -> int:
        """Epochs from one comparison of the rows to send with those of earlier messages to the next; 0: no comparison."""
        return math.gcd(self.bits_policy.compares_every, self.staleness_policy.compares_every)

    @property
    def needs_clock(self) -> bool:
        """Return whether decisions depend on the seconds of epochs."""
        return self.bits_policy.needs_clock or self.staleness_policy.needs_clock
