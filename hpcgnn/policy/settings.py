"""The settings that policies have of their own, and the policies by name: known without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcgnn.registry import Known
from hpcgnn.settings import setting

FIXED, OFF = "fixed", "off"
SMOOTHINGS = ("none", "features", "gradients", "both")
CORRECTIONS = ("neighbours", "none")
DESCENT_RULES = ("corrected", "printed")
DRIFT_RULES = ("corrected", "printed")
BYPASSES = ("drift", "late")


@dataclass(frozen=True)
class SmoothingSettings:
    """PipeGCN's, of stale rows."""

    smoothing: str = setting(
        "none", "a moving average of stale features, gradients or both in place of them (PipeGCN).", choices=SMOOTHINGS
    )
    smoothing_decay: float = setting(
        0.95,
        "share of the epochs before in that average.",
        least=0,
        most=1,
        used_if=lambda own: own.smoothing != "none",
        users="--smoothing features, gradients and both use it",
    )


@dataclass(frozen=True)
class CorrectionSettings:
    """Of stale rows."""

    stale_correction: str = setting(
        "neighbours",
        "correct stale rows by how far a node's neighbours on its own rank moved since they were sent (docs/studies/staleness).",
        choices=CORRECTIONS,
    )


@dataclass(frozen=True)
class PeriodSettings:
    """Of policies that assign bits now and then."""

    bits_period: int = setting(50, "epochs from one assignment of bits to the next.", least=1)


@dataclass(frozen=True)
class AdaQPSettings:
    """The paper's (its Table 8), and where the costs of links are kept; they are measured where there is no such file."""

    variance_weight: float = setting(
        0.5, "lambda: 0 for the fewest seconds on the wire, 1 for the least variance.", least=0, most=1
    )
    group_rows: int = setting(100, "rows that share an assignment.", least=1)
    link_costs: Path | None = setting(
        None, "file with what messages cost, written if it is missing.", default_in_words="link_costs.json in --out"
    )
    refit_links: bool = setting(False, "measure what messages cost, whatever --link-costs holds.", is_kept=False)


@dataclass(frozen=True)
class DescentSettings:
    """How the descent of the loss is measured (§V-A)."""

    loss_memory: float = setting(0.9, "lambda, of the running average of the loss.", least=0, most=1)
    loss_window: int = setting(
        5, "delta: the loss's descent is compared with that of so many epochs ago (20: faster).", least=1
    )
    descent_rule: str = setting(
        "corrected",
        "the loss descent rate with the sign that the paper prints, or with that of its text.",
        choices=DESCENT_RULES,
    )


@dataclass(frozen=True)
class DriftSettings:
    """Of both parts of B_CHECK (§3.5)."""

    drift_threshold: float = setting(
        0.1, "E: rows whose cosine distance from those before is larger are sent anew, in other bits.", least=0
    )


@dataclass(frozen=True)
class DriftBitsSettings:
    """Of the part about bits."""

    drift_rule: str = setting(
        "corrected", "Eq. 7 as printed only ever raises bits; corrected also lowers them.", choices=DRIFT_RULES
    )


@dataclass(frozen=True)
class AgeSettings:
    """Of the part about staleness."""

    most_stale_epochs: int = setting(4, "rows are never used later than so many epochs after they were sent.", least=1)


@dataclass(frozen=True)
class BypassSettings:
    """Of S_CHECK."""

    bypass: str = setting(
        "drift", "leave out exchanges whose rows change little: all of them, or those that are late.", choices=BYPASSES
    )


_STALE = (CorrectionSettings, SmoothingSettings)

KNOWN_BITS = {
    FIXED: Known("hpcgnn.policy.fixed", ""),
    "uniform": Known("hpcgnn.policy.uniform", "draws 2, 4 or 8", (PeriodSettings,)),
    "adaqp": Known("hpcgnn.policy.adaqp", "weighs variance against time", (PeriodSettings, AdaQPSettings)),
    "sylvie": Known("hpcgnn.policy.sylvie", "goes by in-degrees and the loss", (DescentSettings,)),
    "pipeqs": Known("hpcgnn.policy.pipeqs", "goes by how much rows change", (DriftSettings, DriftBitsSettings)),
}
KNOWN_STALENESS = {
    OFF: Known("hpcgnn.policy.synchronous", "never"),
    "pipeline": Known("hpcgnn.policy.pipeline", "always (PipeGCN)", _STALE),
    "sylvie": Known("hpcgnn.policy.sylvie", "while the loss falls well", (DescentSettings, *_STALE)),
    "pipeqs": Known(
        "hpcgnn.policy.pipeqs",
        "also older ones, while they change little",
        (DriftSettings, AgeSettings, BypassSettings, *_STALE),
    ),
}
