"""The shipped studies of accuracy: settings that their configurations share with each other and with the presets."""

from __future__ import annotations

import tomllib
from pathlib import Path

from shipped_studies import shipped, summary_of

import hpcgnn.presets

PRESETS = Path(*hpcgnn.presets.__path__)
_ARITHMETIC = {"name", "compute", "int8_before_softmax", "int8_rounding"}


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
        kept = {axis: value for axis, value in run.configuration.items() if axis not in _ARITHMETIC}
        pairs.setdefault(str((kept, run.graph)), []).append(f"{run.given['name']} {run.given['compute']}")
    arithmetics = ["plain float32", "plain bf16", "plain int8-always", "Test1 int8-always", "Test2 int8-always"]
    assert list(pairs.values()) == [arithmetics] * 4 * 3 * 10


def test_splits_of_nodes_and_links_are_those_of_the_seed() -> None:
    (first, *_, last) = [run for run in shipped("int8-accuracy").runs if run.given.get("task") == "link"]
    assert first.graph is not None
    assert last.graph is not None
    splits = [graph.options[graph.options.index("--split") + 1] for graph in (first.graph, last.graph)]
    assert splits == ["random:0.6,0.2,0.2,0", "random:0.6,0.2,0.2,9"]
    assert tuple(run.flags[run.flags.index("--link-seed") + 1] for run in (first, last)) == ("0", "9")
    assert first.configuration["link_seed"] == last.configuration["link_seed"] == "{seed}", "one configuration"


def test_axes_that_follow_from_those_of_the_rows_are_no_columns() -> None:
    tables = summary_of("int8-accuracy").tables
    assert {table.header[: table.label_columns] for table in tables} == {("graph", "task", "model", "epochs")}
    assert all(len(table.rows) == 4 * 3 for table in tables), "Test1 and Test2 beside each other"
