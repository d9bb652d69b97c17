"""Runs of a study by their configuration, and the estimates of figures over their seeds and repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from hpcgnn.lab.study import measures, statistics
from hpcgnn.lab.study.axes import matches
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import STRONG, WEAK, Specification
from hpcgnn.lab.study.statistics import Estimate
from hpcgnn.lab.study.tables import NOTHING

RANKS = "ranks"
_FOLLOW_RANKS = ("hosts", "ranks_per_node")
_OF_RUNS = ("seed", "repeat")


@dataclass(frozen=True)
class Group:
    """The results of one configuration, by repeat and seed: figures, and, for trainings, lists over epochs by name."""

    configuration: Mapping[str, Any]
    figures: Mapping[tuple[int, int], Mapping[str, Any]]
    epochs: Mapping[tuple[int, int], Mapping[str, list[Any]]]

    def values(self, figure: str) -> dict[tuple[int, int], float]:
        """The value of a figure in each run that has it."""
        found = {pair: measures.value(figures, figure) for pair, figures in self.figures.items()}
        return {pair: value for pair, value in found.items() if value is not None}

    def matches(self, wanted: Mapping[str, Any]) -> bool:
        """Return whether the group has the wanted values of axes; a list stands for any of its values."""
        return matches(self.configuration, wanted)

    def label(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The group's values of these axes; a dash for an axis that it does not have, such as a strategy without exchanges."""
        return tuple(str(self.configuration.get(axis, NOTHING)) for axis in axes)


class Groups:
    """All groups of a study on one machine."""

    def __init__(self, specification: Specification, finished: Iterable[Record]) -> None:
        self.kind, self._varied, self._product = specification.kind, specification.varied, specification.product
        by_key = {record.key: record for record in finished}
        found: dict[str, tuple[dict[str, Any], dict[Any, Any], dict[Any, Any]]] = {}
        of_lines: dict[str, set[str]] = {}
        for run in specification.runs:
            if run.key not in by_key:
                continue
            configuration = {name: value for name, value in run.configuration.items() if name not in _OF_RUNS}
            for line, figures in measures.lines(by_key[run.key]):
                axes = configuration | line
                _, of_figures, epochs = found.setdefault(str(axes), (axes, {}, {}))
                of_figures[run.round], epochs[run.round] = figures, by_key[run.key].epochs
                for axis, value in line.items():
                    of_lines.setdefault(axis, set()).add(value)
        self.all = [Group(*each) for each in found.values()]
        # Lines have axes that the specification does not name, and groups may differ in these as well.
        in_lines = tuple(axis for axis in measures.LINE_AXES if axis in of_lines)
        self._varied, self._product = (*self._varied, *in_lines), (*self._product, *in_lines)

    def matching(self, wanted: Mapping[str, Any]) -> list[Group]:
        """The groups with these values of axes."""
        return [group for group in self.all if group.matches(wanted)]

    def left_open(self, groups: Sequence[Group], named: Iterable[str]) -> tuple[str, ...]:
        """The axes, beside the named ones, in which ``groups`` differ. An axis whose value follows from others is left out."""
        known = [*named]
        known += [*(_FOLLOW_RANKS if RANKS in known else ()), *(("bench",) if "subject" in known else ())]
        found: list[str] = []
        for axis in self._varied:
            if len({group.label([*known, *found, axis]) for group in groups}) > len(
                {group.label([*known, *found]) for group in groups}
            ):
                found.append(axis)
        return tuple(found)

    def estimate(self, group: Group, figure: str, baseline: Mapping[str, Any]) -> Estimate | None:
        """The estimate of a figure of a group; None if it was not measured, or if the group to compare with was not."""
        base, ending = measures.split(figure)
        if figure == measures.SPREAD:
            values = [seconds for epochs in group.epochs.values() for seconds in epochs.get("seconds", [])]
            if not values:
                return statistics.median(list(group.values(measures.SPREAD).values()))
            return Estimate(statistics.spread(values), None, None, len(values)) if values else None
        if figure in measures.SCALING:
            return self._scaling(group, figure)
        if figure == measures.SECONDS_TO_TARGET:
            return self._to_target(group, baseline)
        if not ending:
            return statistics.median(list(group.values(base).values()))
        other = self.baseline_of(group, baseline)
        if other is None:
            return None
        compare = statistics.paired_ratio if ending == measures.RATIO else statistics.paired_difference
        return compare(group.values(base), other.values(base))

    def baseline_of(self, group: Group, baseline: Mapping[str, Any]) -> Group | None:
        """The group to compare ``group`` with. It has the values of ``baseline``, the values of ``group`` on the other axes of
        the product, and shares most values on all other axes. None if there is no such group, or several."""
        fixed = set(self._product) - baseline.keys() - set(_FOLLOW_RANKS if RANKS in baseline else ())
        found = [other for other in self.matching(baseline) if other.label(fixed) == group.label(fixed)]
        alike = [sum(other.label([axis]) == group.label([axis]) for axis in self._varied) for other in found]
        return found[alike.index(max(alike))] if alike.count(max(alike, default=0)) == 1 else None

    def _to_target(self, group: Group, baseline: Mapping[str, Any]) -> Estimate | None:
        other = self.baseline_of(group, baseline)
        metrics = [] if other is None else [*other.values(measures.METRIC).values()]
        if not metrics or not any("test_metric" in epochs for epochs in group.epochs.values()):
            return None
        target = fmean(metrics) - measures.TARGET_BELOW
        found = [measures.seconds_to(epochs, "test_metric", target) for epochs in group.epochs.values()]
        return Estimate(median(found), None, None, len(found))

    def _scaling(self, group: Group, figure: str) -> Estimate | None:
        axes = [axis for axis in self._varied if axis not in (RANKS, *_FOLLOW_RANKS)]
        alike = [other for other in self.all if other.label(axes) == group.label(axes)]
        base = min(alike, key=lambda other: other.configuration[RANKS])
        ours, theirs = group.values(measures.SECONDS), base.values(measures.SECONDS)
        if figure == measures.SPEED_UP:
            return statistics.speed_up(ours, theirs)
        if self.kind == WEAK:
            return statistics.weak_efficiency(ours, theirs)
        assert self.kind == STRONG or figure == measures.EFFICIENCY
        return statistics.strong_efficiency(ours, group.configuration[RANKS], theirs, base.configuration[RANKS])
