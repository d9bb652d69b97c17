"""The measurements of a study for Extra-P (https://github.com/extra-p/extrap), which fits models of scaling to them: lines of
JSON, ``{"params": {"ranks": 4}, "callpath": "bits 2->epoch", "metric": "seconds", "value": 0.1}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import measures
from hpcgnn.lab.study.groups import Group, in_words
from hpcgnn.lab.study.summary import finished_groups, read_study
from hpcgnn.train.run_files import is_number

_FIGURES = {measures.SECONDS: "seconds", "bytes_sent_per_epoch": "bytes", "peak_memory_bytes_per_rank": "memory bytes"}
_PHASES = "breakdown_seconds_median"


def lines(folder: str | Path, machine: str = "") -> Iterator[dict[str, Any]]:
    """A line for each figure of each finished run. Varied axes with numbers are parameters, and the others the beginning of a
    call path; phases of an epoch are calls within it. Raises HpcgnnError if no axis with numbers varies."""
    study, groups = read_study(folder), finished_groups(folder, machine)
    values = {axis: {group.configuration.get(axis) for group in groups.all} for axis in study.varied}
    numbers = [axis for axis, found in values.items() if all(map(is_number, found))]
    if not numbers:
        raise HpcgnnError(f"{folder} varies no axis with numbers, such as ranks, so that there is nothing to fit")
    others = [axis for axis in study.varied if axis not in numbers]
    for group in groups.all:
        path = [in_words(others, group.label(others))] if others else []
        params = {axis: group.configuration[axis] for axis in numbers}
        for place, metric, value in _measured(group):
            yield {"params": params, "callpath": "->".join([*path, *place]), "metric": metric, "value": value}


def _measured(group: Group) -> Iterator[tuple[tuple[str, ...], str, float]]:
    """Place, metric and value of each figure of each run."""
    for figures in group.figures.values():
        for name, metric in _FIGURES.items():
            if (value := measures.value(figures, name)) is not None:
                yield ("epoch",), metric, value
        for phase, seconds in figures.get(_PHASES, {}).items():
            yield ("epoch", phase.removesuffix("_seconds")), "seconds", seconds
