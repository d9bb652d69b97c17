"""Runs of a study by their configuration, and the estimates of figures over their seeds and repeats: medians with bootstrap
intervals, and ratios and differences of pairs with Student's. Pairs have the same seed and repeat, and ran within one round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from hpcgnn.lab.study import measures
from hpcgnn.lab.study.axes import matches
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import STRONG, WEAK, Specification
from hpcgnn.lab.study.tables import NOTHING

RANKS, GRAPH = "ranks", "graph"
_FOLLOW_RANKS = ("hosts", "ranks_per_node")
_OF_RUNS = ("seed", "repeat")
_LEVEL = 0.95
_RESAMPLES, _LEAST_FOR_BOOTSTRAP = 2000, 3
ByRound = Mapping[tuple[int, int], float]  # values by repeat and seed


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 95 % interval, None if there are too few values for one. count: number of values or pairs."""

    value: float
    low: float | None
    high: float | None
    count: int

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """The value and its interval under a growing function."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return Estimate(function(self.value), low, high, self.count)


def median(values: Sequence[float]) -> Estimate | None:
    """The median, with an interval by the percentile bootstrap if there are at least three values. None without values."""
    if not len(values):
        return None
    array = np.asarray(values, float)
    middle = float(np.median(array))
    if len(array) < _LEAST_FOR_BOOTSTRAP:
        return Estimate(middle, None, None, len(array))
    picks = np.random.default_rng(0).integers(len(array), size=(_RESAMPLES, len(array)))
    low, high = np.quantile(np.median(array[picks], axis=1), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(middle, float(low), float(high), len(array))


def spread(values: Sequence[float]) -> float:
    """Largest minus smallest value, relative to the median."""
    return float((max(values) - min(values)) / np.median(values)) if len(values) and np.median(values) else math.nan


def paired_difference(ours: ByRound, theirs: ByRound) -> Estimate | None:
    """The mean of ``ours - theirs`` over common keys, with Student's interval if there are two pairs. None without pairs."""
    return _student([ours[key] - theirs[key] for key in ours if key in theirs])


def paired_ratio(ours: ByRound, theirs: ByRound) -> Estimate | None:
    """The geometric mean of ``ours / theirs`` over common keys, with Student's interval of its logarithm. None without pairs of
    positive numbers."""
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    logs = _student([math.log(one / other) for one, other in pairs if one > 0 and other > 0])
    return None if logs is None else logs.mapped(math.exp)


def _student(values: list[float]) -> Estimate | None:
    if len(values) < 2:
        return Estimate(values[0], None, None, 1) if values else None
    mean = float(np.mean(values))
    half = float(stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half, len(values))


def in_words(axes: Iterable[str], values: Iterable[object]) -> str:
    """Values of axes, such as ``bits 2, ranks 4``."""
    return ", ".join(f"{axis} {value}" for axis, value in zip(axes, values, strict=True))


@dataclass(frozen=True)
class Group:
    """The results of one configuration, by repeat and seed: figures, and, for trainings, lists over epochs by name."""

    configuration: Mapping[str, Any]
    figures: dict[tuple[int, int], Mapping[str, Any]]
    epochs: dict[tuple[int, int], Mapping[str, list[Any]]]

    def values(self, figure: str) -> dict[tuple[int, int], float]:
        """The value of a figure in each run that has it."""
        found = {pair: measures.value(figures, figure) for pair, figures in self.figures.items()}
        return {pair: value for pair, value in found.items() if value is not None}

    def label(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The group's values of these axes; a dash for an axis that it does not have, such as a strategy without exchanges."""
        return tuple(str(self.configuration.get(axis, NOTHING)) for axis in axes)


def _seconds_to(group: Group, target: float) -> Estimate | None:
    """The median over runs of the seconds of training until the test metric reaches the target; None without evaluations."""
    if not any("test_metric" in epochs for epochs in group.epochs.values()):
        return None
    found = [measures.seconds_to(epochs, "test_metric", target) for epochs in group.epochs.values()]
    return Estimate(float(np.median(found)), None, None, len(found))


class Groups:
    """All groups of a study on one machine."""

    def __init__(self, specification: Specification, finished: Iterable[Record]) -> None:
        self.kind = specification.kind
        by_key = {record.key: record for record in finished}
        found: dict[str, Group] = {}
        of_lines: set[str] = set()
        for run in specification.runs:
            if run.key not in by_key:
                continue
            configuration = {name: value for name, value in run.configuration.items() if name not in _OF_RUNS}
            for line, figures in measures.lines(by_key[run.key]):
                of_lines |= line.keys()
                axes = configuration | line
                group = found.setdefault(str(axes), Group(axes, {}, {}))
                group.figures[run.round], group.epochs[run.round] = figures, by_key[run.key].epochs
        self.all = list(found.values())
        # Lines have axes that the specification does not name, and groups may differ in these as well.
        in_lines = tuple(axis for axis in measures.LINE_AXES if axis in of_lines)
        self._varied, self._product = (*specification.varied, *in_lines), (*specification.product, *in_lines)

    def matching(self, wanted: Mapping[str, Any]) -> list[Group]:
        """The groups with these values of axes; a list stands for any of its values."""
        return [group for group in self.all if matches(group.configuration, wanted)]

    def left_open(self, groups: Sequence[Group], named: Iterable[str]) -> tuple[str, ...]:
        """The axes, beside the named ones, in which ``groups`` differ. An axis whose value follows from others is left out."""
        known = [*named]
        known += [*(_FOLLOW_RANKS if RANKS in known else ()), *(("bench",) if "subject" in known else ())]
        found: list[str] = []
        for axis in self._varied:
            fewer, more = ({group.label(each) for group in groups} for each in (known, [*known, axis]))
            if len(more) > len(fewer):
                found.append(axis)
                known.append(axis)
        return tuple(found)

    def estimate(self, group: Group, figure: str, baseline: Mapping[str, Any]) -> Estimate | None:
        """The estimate of a figure of a group; None if it was not measured, or if the group to compare with was not."""
        base, ending = measures.split(figure)
        if figure == measures.SPREAD:
            values = [seconds for epochs in group.epochs.values() for seconds in epochs.get("seconds", [])]
            if values:
                return Estimate(spread(values), None, None, len(values))
        elif figure in measures.SCALING:
            return self._scaling(group, figure)
        elif figure == measures.SECONDS_TO_BEST:
            return self._to_best(group)
        if not measures.needs_baseline(figure):
            return median([*group.values(base).values()])
        other = self._baseline_of(group, baseline)
        if other is None or figure == measures.SECONDS_TO_TARGET:
            return None if other is None else self._to_target(group, other)
        compare = paired_ratio if ending == measures.RATIO else paired_difference
        return compare(group.values(base), other.values(base))

    def _baseline_of(self, group: Group, baseline: Mapping[str, Any]) -> Group | None:
        """The group to compare ``group`` with: it has the values of ``baseline``, those of ``group`` on the other axes of the
        product, and shares most values on all other axes. None if there is no such group, or several."""
        fixed = set(self._product) - baseline.keys() - set(_FOLLOW_RANKS if RANKS in baseline else ())
        found = [other for other in self.matching(baseline) if other.label(fixed) == group.label(fixed)]
        alike = [sum(other.label([axis]) == group.label([axis]) for axis in self._varied) for other in found]
        return found[alike.index(max(alike))] if alike.count(max(alike, default=0)) == 1 else None

    def _to_target(self, group: Group, baseline: Group) -> Estimate | None:
        metrics = [*baseline.values(measures.METRIC).values()]
        return _seconds_to(group, fmean(metrics) - measures.TARGET_BELOW) if metrics else None

    def _to_best(self, group: Group) -> Estimate | None:
        alike = (other for other in self.all if other.label([GRAPH]) == group.label([GRAPH]))
        found = [fmean(values) for other in alike if (values := other.values(measures.METRIC).values())]
        return _seconds_to(group, max(found) - measures.BEST_BELOW) if found else None

    def _scaling(self, group: Group, figure: str) -> Estimate | None:
        """Speed-up T(P0) / T(P), or the efficiency, T(P0) P0 / (T(P) P) for one graph and T(P0) / T(P) for graphs that grow."""
        axes = [axis for axis in self._varied if axis not in (RANKS, *_FOLLOW_RANKS)]
        alike = [other for other in self.all if other.label(axes) == group.label(axes)]
        base = min(alike, key=lambda other: other.configuration[RANKS])
        faster = paired_ratio(base.values(measures.SECONDS), group.values(measures.SECONDS))
        if faster is None or figure == measures.SPEED_UP or self.kind == WEAK:
            return faster
        assert self.kind == STRONG or figure == measures.EFFICIENCY
        return faster.mapped(lambda value: value * (base.configuration[RANKS] / group.configuration[RANKS]))
