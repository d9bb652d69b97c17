"""The shipped studies of messages and policies, their committed records, and the figures of reports about epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shipped_studies import STUDIES, shipped

from hpcgnn.study import curves, markdown, measures, prepare, records, specification, targets
from hpcgnn.study.records import Record
from hpcgnn.study.shown import Figure, Series
from hpcgnn.study.summary import finished_groups, summarise

PAIRED = ("policies", "policies-deep", "policies-speed", "staleness", "staleness-network")
OF_METHODS = {"name", "strategy", "bits", "staleness", "stale_correction", "descent_rule"}


# -- their runs --------------------------------------------------------------------------------------------------------


def test_methods_of_a_pair_differ_in_nothing_else() -> None:
    cases: dict[Any, list[specification.Run]] = {}
    for name in PAIRED:
        for run in shipped(name).runs:
            axes = run.configuration
            case = tuple(axes.get(axis) for axis in ("graph", "model", "rate", "compute", "seed", "repeat"))
            cases.setdefault((name, *case), []).append(run)
    for case, runs in cases.items():
        first = runs[0].configuration
        assert first["name"] == "vanilla", case
        assert (first["strategy"], first["bits"], first["staleness"]) == ("post", "32", "off"), case
        assert len({run.graph.name for run in runs}) == 1, f"{case}: another split"
        others = [run.configuration for run in runs[1:]]
        differing = {axis for each in others for axis in {*first, *each} if first.get(axis) != each.get(axis)}
        assert differing <= OF_METHODS, case


def test_a_split_for_each_seed_and_the_same_parts() -> None:
    for name in ("messages", "policies", "policies-deep", "staleness"):
        runs = shipped(name).runs
        for run in runs:
            assert run.graph is not None
            assert run.graph.options == ("--split", f"random:0.6,0.2,0.2,{run.configuration['seed']}"), run
        flags = {prepare.partition_flags(run) for run in runs}
        assert len(flags) == 1, f"{name}: parts would differ by more than their graph"
        assert "edges" in next(iter(flags)), "training nodes, which each seed has others of, may not choose the parts"


def test_committed_pairs_give_the_figures_that_are_judged() -> None:
    """A figure of the earlier program, reproduced: two-bit messages on Amazon Computers with SAGE and label propagation."""
    groups = finished_groups(STUDIES / "messages")
    (group,) = groups.matching({"name": "int2, LP", "graph": "amazon-computers", "model": "sage"})
    found = groups.estimate(group, "test_metric_at_best_val_difference", {"name": "fp32, LP"})
    assert found is not None
    assert (found.count, round(100 * found.value, 2), round(100 * found.low, 2)) == (10, -0.28, -0.42)


# -- epochs in reports -------------------------------------------------------------------------------------------------


def figures_of(**epochs: list[Any]) -> dict[str, Any]:
    record = Record(
        key="k",
        configuration={"strategy": "hybrid"},
        status="finished",
        epochs=epochs,
        preparation={"plan": {"hybrid": {"rows": 7}, "post": {"rows": 9}}},
    )
    ((_, found),) = measures.lines(record)
    return found


def test_first_epoch_is_no_part_of_mean_times_but_of_bytes_and_shares() -> None:
    found = figures_of(
        seconds=[9.0, 1.0, 3.0, 2.0],
        communication_wait_seconds=[5.0, 0.1, 0.2, 0.3],
        bytes_sent=[100, 100, 50, 50],
        policy_seconds=[2.0, None, 1.0, 0.0],
    )
    assert (found["epoch_seconds_mean"], found["bytes_sent_mean"], found["rows"]) == (2.0, 75, 7)
    assert found["wait_seconds_mean"] == pytest.approx(0.2)
    assert found["policy_share"] == pytest.approx(3 / 15)
    assert figures_of(seconds=[9.0, 1.0])["policy_share"] == 0.0
    assert "epoch_seconds_mean" not in figures_of(seconds=[9.0])


def test_curves_of_records_that_tell_some_epochs_only() -> None:
    run = {"epoch": [1, 3, 4], "training_seconds": [2.0, None, 9.0], "test_metric": [0.5, None, 0.75],
           "bits": [8.0, None, 2.5]}  # fmt: skip
    assert curves.curve([run], curves.EPOCH, "test_metric") == ((2.0, 5.0), (0.5, 0.75))
    assert curves.curve([run], curves.TRAINING_SECONDS, "test_metric") == ((2.0, 9.0), (0.5, 0.75))
    assert curves.curve([run], curves.EPOCH, "bits") == ((2.0, 5.0), (8.0, 2.5))
    assert curves.curve([run], curves.EPOCH, "loss") == ((), ())


def test_exchanges_of_a_curve_are_those_that_sent() -> None:
    run = {"bits": [{"a": {"8": 3}, "b": {"2": 1}}, {"a": {"2": 5}}, {}, 8]}
    assert curves.curve([run], curves.EPOCH, "exchanges") == ((1.0, 2.0, 3.0), (2.0, 1.0, 0.0))


def test_time_to_a_target_is_that_of_most_runs(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "s"\nkind = "train"\nseeds = [0, 1, 2]\n[axes]\ngraph = "digits"\nbits = ["32", "2", "1"]\n'
        '[[report.tables]]\nrows = "bits"\nfigures = "seconds_to_target"\nbaseline = {bits = "32"}\n'
    )
    for run in specification.read(tmp_path / "study.toml").runs:
        seed, bits = run.configuration["seed"], run.configuration["bits"]
        metric = {"32": [0.5, 0.8, 0.8], "2": [0.5, 0.5, 0.795 if seed else 0.7], "1": [0.5, 0.5, 0.7 if seed else 0.8]}
        epochs = {"seconds": [1.0, 1.0, 1.0 + seed], "test_metric": metric[bits]}
        record = Record(key=run.key, configuration=run.configuration, status="finished", epochs=epochs,
                        summary={"test_metric_at_best_val": max(metric[bits])})  # fmt: skip
        records.append(tmp_path, record)
    (table,) = summarise(tmp_path).tables
    assert [row[:2] for row in table.rows] == [("32", "2"), ("2", "5"), ("1", "not reached")]


def test_long_curves_are_told_at_few_places() -> None:
    series = (Series("long", tuple(i / 4 for i in range(1, 201)), tuple(map(float, range(200)))),
              Series("late", (20.3, 30.0), (5.0, 6.0)))  # fmt: skip
    table = markdown._values(Figure("t", "seconds", "metric", series))
    assert [row[0] for row in table.rows] == [str(4 * i) for i in range(1, 13)]
    assert [row[2] for row in table.rows] == ["-"] * 5 + ["5"] * 2 + ["-"] * 5
    assert table.rows[0][1] == "15"
    short = markdown._values(Figure("t", "epoch", "metric", series[1:]))
    assert short.rows == (("20.3", "5"), ("30", "6"))


# -- targets of intervals, and of a number of pairs --------------------------------------------------------------------


def verdict(tmp_path: Path, extra: str, values: list[float]) -> targets.Verdict:
    folder, path = tmp_path / "study", tmp_path / "targets.toml"
    folder.mkdir()
    (folder / "study.toml").write_text(
        f'name = "s"\nkind = "train"\nseeds = {list(range(len(values)))}\n[axes]\ngraph = "digits"\nbits = ["32", "2"]\n'
        '[[report.tables]]\nrows = "bits"\nfigures = "test_metric_at_best_val"\nabout = "What it is for."\n'
    )  # fmt: skip
    for run in specification.read(folder / "study.toml").runs:
        lost = values[run.configuration["seed"]] if run.configuration["bits"] == "2" else 0.0
        record = Record(key=run.key, configuration=run.configuration, status="finished",
                        summary={"test_metric_at_best_val": 0.8 + lost})  # fmt: skip
        records.append(folder, record)
    assert "What it is for." in markdown.page(summarise(folder))
    path.write_text(
        "[[targets]]\nwhere = {bits = 2}\nfigure = 'test_metric_at_best_val_difference'\nbaseline = {bits = 32}\n"
        + extra
    )
    (found,) = targets.verdicts(finished_groups(folder), targets.read(path))
    return found


@pytest.mark.parametrize(
    ("extra", "values", "reached"),
    [
        ("at_least = -0.003\npairs = 2", [-0.001, -0.003], "yes"),
        ("at_least = -0.003\npairs = 3", [-0.001, -0.003], "not measured"),
        ("at_least = -0.005\nof = 'low'", [-0.001, -0.003], "no"),
        ("at_least = -0.005\nof = 'low'", [-0.001, -0.0011], "yes"),
        ("at_least = -0.005\nof = 'low'", [-0.001], "not measured"),
        ("at_most = 0.0\nof = 'high'", [-0.001, -0.0011], "yes"),
    ],
)
def test_ends_of_intervals_and_few_pairs(tmp_path: Path, extra: str, values: list[float], reached: str) -> None:
    found = verdict(tmp_path, extra, values)
    assert found.reached == reached
    assert ("pairs" in found.found) == ("pairs = 3" in extra)
    assert ("interval" in found.wanted) == ("of =" in extra)
