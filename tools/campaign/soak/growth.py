"""The rules by which a soak passes: samples must not grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

WARM_UP = 0.2
"""Share of the samples that are ignored, because memory is allocated when it is first needed."""
SCALE = 1000
"""Number of epochs over which memory may grow by at most a share of it."""
_FEWEST = 4


@dataclass(frozen=True)
class Slope:
    """The slope of a line through samples: bytes for each epoch, with its 95 % interval. level: the mean, in bytes."""

    value: float
    half_width: float
    level: float

    @property
    def interval(self) -> tuple[float, float]:
        """The two ends of the interval."""
        return self.value - self.half_width, self.value + self.half_width

    def problem(self, share: float) -> str:
        """The reason why memory is not flat; empty if the interval contains 0, or if ``SCALE`` epochs add less than ``share``
        of the level.
        """
        low, high = self.interval
        if low <= 0 or self.value * SCALE < share * self.level:
            return ""
        return (
            f"grows by {self.value:,.0f} bytes per epoch (95 %: {low:,.0f} to {high:,.0f}), which is "
            f"{self.value * SCALE / self.level:.1%} of {self.level / 2**20:,.0f} MiB in {SCALE} epochs"
        )


def after_warm_up(values: Sequence[float]) -> Sequence[float]:
    """The samples after the warm-up."""
    return values[int(np.ceil(WARM_UP * len(values))) :]


def slope(epochs: Sequence[float], values: Sequence[float]) -> Slope:
    """The slope by least squares, after the warm-up.

    Raises:
        ValueError: for too few samples.
    """
    x, y = (np.asarray(after_warm_up(each), np.float64) for each in (epochs, values))
    if x.size < _FEWEST:
        raise ValueError(f"{x.size} samples are too few to fit a line to")
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, x.size - 2)) * float(fit.stderr)
    return Slope(float(fit.slope), half, float(y.mean()))


def rises(counts: Sequence[int]) -> str:
    """The growth of a count: its smallest value in the last quarter, less the median of the first quarter after the warm-up.
    Things that exist only for a moment, such as the file of a checkpoint, do not count, nor do the first epochs.
    """
    kept = after_warm_up(counts)
    quarter = max(len(kept) // 4, 1)
    before, now = float(np.median(kept[:quarter])), min(kept[-quarter:])
    return f"rose from {before:g} to {now}" if now > before else ""
