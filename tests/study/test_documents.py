"""Documents in docs/studies are the output of ``hpcgnn study report`` for the records beside them, whose specifications ship."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shipped_studies import COMMITTED, STUDIES, shipped, summary_of

from hpcgnn.study import catalogue, markdown, records, targets
from hpcgnn.study.summary import read_study

WITH_METRICS = ("ablation", "messages", "policies", "policies-deep", "policies-speed", "staleness", "staleness-network")
WITH_TARGETS = ("accuracy", "accuracy-models", "compute-accuracy", "int8-accuracy", "node-aware", "partition-rows")


def test_documents_are_made_of_their_records() -> None:
    assert len(COMMITTED) > 10
    # After the study's own text, a document may have a model's predictions (`hpcgnn study report --model`).
    assert [
        name
        for name in COMMITTED
        if not (STUDIES / name / "report.md").read_text().startswith(markdown.page(summary_of(name)).rstrip())
    ] == []


def test_shipped_specifications_are_in_order_and_those_of_the_documents() -> None:
    for name in catalogue.shipped():
        study = shipped(name)
        assert study.name == name
        assert study.about, name
        assert catalogue.outline(study.path) == catalogue.Outline(name, study.kind, study.about, len(study.runs))
    for name in COMMITTED:
        if (STUDIES / name / records.SPECIFICATION).read_bytes() != shipped(name).path.read_bytes():
            assert {run.key for run in shipped(name).runs} == {run.key for run in read_study(STUDIES / name).runs}, name


def test_committed_records_are_of_the_shipped_specification() -> None:
    for name in WITH_METRICS:
        found, runs = records.read(STUDIES / name), {run.key: run for run in shipped(name).runs}
        assert found
        assert [
            (name, record.key)
            for record in found
            if not record.is_finished
            or record.configuration != runs[record.key].configuration
            or not 0 < record.summary["test_metric_at_best_val"] < 1
        ] == []
        assert f"{len(found)} of {len(runs)} have finished" in markdown.page(summary_of(name))


def without_a_run(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configurations of a study's targets that none of its runs has."""
    found = [run.configuration for run in shipped(name).runs]
    for target in targets.read(targets.default_path(shipped(name))):
        for wanted in (target.where, target.baseline):
            asked = {
                axis: [str(each) for each in (value if isinstance(value, list) else [value])]
                for axis, value in wanted.items()
                if axis != "step"  # of a preparation
            }
            if not any(all(str(run.get(axis)) in values for axis, values in asked.items()) for run in found):
                yield name, wanted


def test_targets_are_about_configurations_that_there_are() -> None:
    assert [offender for name in (*WITH_METRICS, *WITH_TARGETS) for offender in without_a_run(name)] == []
