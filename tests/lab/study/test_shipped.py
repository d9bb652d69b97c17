"""Shipped specifications, and the committed records and documents of studies: ``hpcgnn study report`` makes a document of the
records beside it, whose specification ships.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import pytest
from rank_pool import ROOT

import hpcgnn.presets
from hpcgnn.lab.study import catalogue, records, specification
from hpcgnn.lab.study.summary import StudySummary, finished_groups, read_study, summarise

STUDIES = ROOT / "docs" / "studies"
COMMITTED = sorted(path.parent.name for path in STUDIES.glob("*/records.jsonl"))
PRESETS = Path(*hpcgnn.presets.__path__)
WITH_METRICS = ("messages", "policies", "policies-deep", "policies-speed", "staleness", "staleness-network")


@functools.cache
def shipped(name: str) -> specification.Specification:
    return specification.read(catalogue.find(name))


@functools.cache
def summary_of(name: str) -> StudySummary:
    return summarise(STUDIES / name)


# -- documents and targets ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_documents_are_made_of_their_records() -> None:
    assert len(COMMITTED) > 10
    # After the study's own text, a document may have a model's predictions (`hpcgnn study report --model`).
    assert [
        name
        for name in COMMITTED
        if not (STUDIES / name / "report.md").read_text().startswith(summary_of(name).markdown().rstrip())
    ] == []


@pytest.mark.slow
def test_shipped_specifications_are_in_order_and_those_of_the_documents() -> None:
    for name in catalogue.shipped():
        study = shipped(name)
        assert study.name == name
        assert study.about, name
        assert catalogue.outline(study.path) == catalogue.Outline(name, study.kind, study.about, len(study.runs))
    for name in COMMITTED:
        if (STUDIES / name / records.SPECIFICATION).read_bytes() != shipped(name).path.read_bytes():
            assert {run.key for run in shipped(name).runs} == {run.key for run in read_study(STUDIES / name).runs}, name


@pytest.mark.slow
def test_committed_records_are_of_the_shipped_specification() -> None:
    for name in (*WITH_METRICS, "policies-settings"):
        found, runs = records.read(STUDIES / name), {run.key: run for run in shipped(name).runs}
        assert found
        assert [
            (name, record.key)
            for record in found
            if not record.is_finished or record.key not in runs or not 0 < record.summary["test_metric_at_best_val"] < 1
        ] == []
        assert f"{len(found)} of {len(runs)} have finished" in summary_of(name).markdown()


# -- accuracy ----------------------------------------------------------------------------------------------------------


def test_configurations_have_the_settings_of_the_presets_that_name_them() -> None:
    runs = {run.given["name"]: run.given for run in shipped("accuracy-models").runs}
    assert len(runs) == 5
    for name, given in runs.items():
        preset = tomllib.loads((PRESETS / f"{name}.toml").read_text())
        others = {"name", "graph", "ranks", "threads", "compute", "device"}
        assert {setting: value for setting, value in given.items() if setting not in others} == preset, name


def test_rates_of_time_to_accuracy_are_those_that_its_study_found() -> None:
    """The rate with the best validation metric, of three for each graph and library, with a seed that decides nothing else."""
    found = finished_groups(STUDIES / "time-to-accuracy-rates")
    tried: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for group in found.all:
        metric = found.estimate(group, "best_val_metric", {})
        assert metric is not None
        tried.setdefault(group.label(["graph", "framework"]), []).append((metric.value, group.configuration["lr"]))
    assert {len(each) for each in tried.values()} == {3}
    chosen = {case: max(each)[1] for case, each in tried.items()}
    for run in shipped("time-to-accuracy").runs:
        given = run.configuration
        assert given["lr"] == chosen[given["graph"], given["framework"]], run.key
        assert given["seed"] not in {seed for group in found.all for _, seed in group.figures}
