"""The targets of shipped specifications, applied to figures that a test makes up."""

from __future__ import annotations

from typing import Any

from hpcgnn.study import catalogue, records, specification, targets
from hpcgnn.study.groups import Groups
from hpcgnn.study.records import Record
from hpcgnn.study.targets import Verdict


def verdicts(name: str, *found: dict[str, Any]) -> list[Verdict]:
    """The verdicts of a study whose first runs have these results: ``{"lines": ...}`` of a bench, or the summary of
    a training.
    """
    study = specification.read(catalogue.find(name))
    done = [
        Record(key=run.key, configuration=run.configuration, status=records.FINISHED, summary=summary)
        for run, summary in zip(study.runs, found, strict=False)
    ]
    return targets.verdicts(Groups(study, done), targets.read(targets.default_path(study)))


def answers(name: str, *found: dict[str, Any]) -> dict[str, list[str]]:
    """The verdicts of each target, without those for which nothing was measured."""
    by_target: dict[str, list[str]] = {}
    for verdict in verdicts(name, *found):
        if verdict.reached != targets.NOT_MEASURED:
            by_target.setdefault(verdict.target, []).append(verdict.reached)
    return by_target
