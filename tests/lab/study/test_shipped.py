"""Shipped specifications, and the committed records and documents of studies: ``hpcgnn study report`` makes a document of the
records beside it, whose specification ships.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import ROOT

import hpcgnn.presets
from hpcgnn.lab.study import catalogue, prepare, records, specification, targets
from hpcgnn.lab.study.summary import StudySummary, finished_groups, read_study, summarise

STUDIES = ROOT / "docs" / "studies"
COMMITTED = sorted(path.parent.name for path in STUDIES.glob("*/records.jsonl"))
PRESETS = Path(*hpcgnn.presets.__path__)
WITH_METRICS = ("messages", "policies", "policies-deep", "policies-speed", "staleness", "staleness-network")
WITH_TARGETS = ("accuracy", "accuracy-models", "compute-accuracy", "int8-accuracy", "node-aware", "partition-rows")
PAIRED = ("policies", "policies-deep", "policies-speed", "staleness", "staleness-network")
OF_METHODS = {"name", "strategy", "bits", "staleness"}
OF_POLICIES = {"time_scale", "group_rows", "variance_weight", "bits_period", "loss_window", "stale_correction"}
OF_ARITHMETIC = {"name", "compute", "int8_before_softmax", "int8_rounding"}


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
    assert [offender for name in ("ablation", *WITH_METRICS, *WITH_TARGETS) for offender in without_a_run(name)] == []
    found = sorted(catalogue.FOLDER.glob("*.targets.toml"))
    assert found
    for path in found:
        assert targets.read(path)
        assert path.name.removesuffix(".targets.toml") in catalogue.shipped()


# -- accuracy ----------------------------------------------------------------------------------------------------------


def test_configurations_have_the_settings_of_the_presets_that_name_them() -> None:
    runs = {run.given["name"]: run.given for run in shipped("accuracy-models").runs}
    assert len(runs) == 5
    for name, given in runs.items():
        preset = tomllib.loads((PRESETS / f"{name}.toml").read_text())
        others = {"name", "graph", "ranks", "threads", "compute", "device"}
        assert {setting: value for setting, value in given.items() if setting not in others} == preset, name


def test_trainings_in_8_bit_integers_differ_from_float32_in_nothing_but_the_arithmetic() -> None:
    runs = shipped("int8-accuracy").runs
    pairs: dict[str, list[str]] = {}
    for run in runs:
        kept = {axis: value for axis, value in run.configuration.items() if axis not in OF_ARITHMETIC}
        pairs.setdefault(str((kept, run.graph)), []).append(f"{run.given['name']} {run.given['compute']}")
    arithmetics = ["plain float32", "plain bf16", "plain int8-always", "Test1 int8-always", "Test2 int8-always"]
    assert list(pairs.values()) == [arithmetics] * 3 * 3 * 5


def test_splits_of_nodes_and_links_are_those_of_the_seed() -> None:
    (first, *_, last) = [run for run in shipped("int8-accuracy").runs if run.given.get("task") == "link"]
    splits = [graph.options[graph.options.index("--split") + 1] for graph in (first.graph, last.graph)]
    assert splits == ["random:0.6,0.2,0.2,0", "random:0.6,0.2,0.2,4"]
    assert tuple(run.flags[run.flags.index("--link-seed") + 1] for run in (first, last)) == ("0", "4")
    assert first.configuration["link_seed"] == last.configuration["link_seed"] == "{seed}", "one configuration"


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


# -- messages and policies ---------------------------------------------------------------------------------------------


def test_methods_of_a_pair_differ_in_nothing_else() -> None:
    cases: dict[Any, list[specification.Run]] = {}
    for name in PAIRED:
        for run in shipped(name).runs:
            axes = run.configuration
            case = tuple(axes.get(axis) for axis in ("isa", "graph", "model", "rate", "compute", "seed", "repeat"))
            cases.setdefault((name, *case), []).append(run)
    for case, runs in cases.items():
        first = runs[0].configuration
        if first.get("isa") != "avx2":  # whose ratios are to the faster vanilla of the CPU's own instructions
            assert first["name"] == "vanilla", case
            assert (first["strategy"], first["bits"], first["staleness"]) == ("post", "32", "off"), case
        assert len({run.graph.name for run in runs}) == 1, f"{case}: another split"
        others = [run.configuration for run in runs[1:]]
        differing = {axis for each in others for axis in {*first, *each} if first.get(axis) != each.get(axis)}
        assert differing <= OF_METHODS, case


def test_settings_of_policies_are_compared_with_exact_messages_of_the_same_model() -> None:
    runs = [run.configuration for run in shipped("policies-settings").runs]
    exact = {(run["model"], run["seed"]): run for run in runs if run["name"] == "vanilla"}
    assert all((run["bits"], run["staleness"]) == ("32", "off") for run in exact.values())
    for run in runs:
        other = exact[run["model"], run["seed"]]
        differing = {axis for axis in {*run, *other} if run.get(axis) != other.get(axis)}
        assert differing <= {"name", "bits", "staleness"} | OF_POLICIES, run["name"]


def test_a_split_for_each_seed_and_the_same_parts() -> None:
    for name in ("messages", "policies", "policies-deep", "policies-settings", "staleness"):
        runs = shipped(name).runs
        for run in runs:
            assert run.graph.options == ("--split", f"random:0.6,0.2,0.2,{run.configuration['seed']}"), run
        flags = {prepare.partition_flags(run) for run in runs}
        assert len(flags) == 1, f"{name}: parts would differ by more than their graph"
        assert "edges" in next(iter(flags)), "training nodes, which each seed has others of, may not choose the parts"
