"""Statistics of a study: medians with bootstrap intervals, paired ratios and differences with Student's, speed-up, efficiency.

Pairs are runs with the same seed and repeat. Both ran within one round, so that other work of the machine affected both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
_RESAMPLES, _LEAST_FOR_BOOTSTRAP = 2000, 3


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 95 % interval, None if there are too few values for one. count: number of values or pairs."""

    value: float
    low: float | None
    high: float | None
    count: int

    def scaled(self, factor: float) -> Estimate:
        """The value and its interval times a positive number."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Estimate(self.value * factor, low, high, self.count)


def median(values: Sequence[float]) -> Estimate | None:
    """The median, with an interval by the percentile bootstrap if there are at least three values. None without values."""
    if not len(values):
        return None
    array = np.asarray(values, float)
    middle = float(np.median(array))
    if len(array) < _LEAST_FOR_BOOTSTRAP:
        return Estimate(middle, None, None, len(array))
    picks = np.random.default_rng(0).integers(len(array), size=(_RESAMPLES, len(array)))
    low, high = np.quantile(np.median(array[picks], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(middle, float(low), float(high), len(array))


def spread(values: Sequence[float]) -> float:
    """Largest minus smallest value, relative to the median."""
    return float((max(values) - min(values)) / np.median(values)) if len(values) and np.median(values) else math.nan


def paired_difference(
    ours: Mapping[tuple[int, int], float], theirs: Mapping[tuple[int, int], float]
) -> Estimate | None:
    """The mean of ``ours - theirs`` over common keys, with Student's interval if there are two pairs. None without pairs."""
    return _student([ours[key] - theirs[key] for key in ours if key in theirs])


def paired_ratio(ours: Mapping[tuple[int, int], float], theirs: Mapping[tuple[int, int], float]) -> Estimate | None:
    """The geometric mean of ``ours / theirs`` over common keys, with Student's interval of its logarithm. None without pairs of
    positive numbers."""
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    logs = _student([math.log(one / other) for one, other in pairs if one > 0 and other > 0])
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.value), low, high, logs.count)


def speed_up(seconds: Mapping[tuple[int, int], float], base: Mapping[tuple[int, int], float]) -> Estimate | None:
    """The speed-up ``T(P0) / T(P)`` over pairs. seconds: T(P) by repeat and seed. base: T(P0)."""
    return paired_ratio(base, seconds)


def strong_efficiency(
    seconds: Mapping[tuple[int, int], float], ranks: int, base: Mapping[tuple[int, int], float], base_ranks: int
) -> Estimate | None:
    """The efficiency ``T(P0) P0 / (T(P) P)`` of one graph on P0 and on P ranks, over pairs."""
    faster = speed_up(seconds, base)
    return None if faster is None else faster.scaled(base_ranks / ranks)


def weak_efficiency(seconds: Mapping[tuple[int, int], float], base: Mapping[tuple[int, int], float]) -> Estimate | None:
    """The efficiency ``T(P0) / T(P)`` for graphs that grow with the number of ranks, over pairs."""
    return paired_ratio(base, seconds)


def _student(values: list[float]) -> Estimate | None:
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None, len(values))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half, len(values))
