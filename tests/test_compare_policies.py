"""`tools/compare_policies.py`: what it keeps of a run, what it says of made-up ones, all of it on a small graph."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "compare_policies.py"


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")


@pytest.fixture
def tool() -> Any:
    return importlib.import_module("compare_policies")


@pytest.fixture
def report() -> Any:
    return importlib.import_module("compare_policies_report")


def runs(method: str, accuracies: list[float], *, rate: str = "100mbit", **values: Any) -> list[dict[str, Any]]:
    """A run for each seed, an epoch of a second and a megabyte unless ``values`` says otherwise."""
    usual = {
        "graph": "g", "model": "gcn", "rate": rate, "method": method, "source": "made up", "definition": method,
        "epochs": 2, "epoch_seconds_mean": 1.0, "policy_share": 0.0, "wait_seconds_mean": 0.1, "bytes_sent_mean": 1e6,
        "bits": {"32": 1.0}, "stale_share": 0.0, "curve": [[1, 1.0, 0.1], [2, 2.0, 0.9]],
    }  # fmt: skip
    return [usual | {"seed": seed, "test_metric_at_best_val": accuracy / 100} | values
            for seed, accuracy in enumerate(accuracies)]  # fmt: skip


def answers(report: Any, measured: list[dict[str, Any]], what: str) -> list[str]:
    return [line.reached for line in report.requirements(measured) if line.what.startswith(what)]


VANILLA = runs("vanilla", [80.0] * 10)


# -- what is kept of a run ---------------------------------------------------------------------------------------------


def summary(**records: list[Any]) -> dict[str, Any]:
    usual = {
        "seconds": [9.0, 1.0, 3.0, 2.0], "communication_wait_seconds": [5.0, 0.1, 0.2, 0.3],
        "wire_seconds": [5.0, 1.0, 1.0, 4.0], "bytes_sent": [100, 100, 50, 50], "bits": [8, 8, 8, 8],
        "stale": [False, True, True, True], "test_metric": [None, 0.123456, None, 0.5],
    }  # fmt: skip
    found = {"test_metric_at_best_val": 0.5, "best_val_metric": 0.6, "epochs": 4, "best_epoch": 3}
    return found | {"records": usual | records}


def test_first_epoch_is_no_part_of_speed_but_of_bytes_and_of_the_curve(tool: Any) -> None:
    kept = tool.reduced(summary())
    assert (kept["epoch_seconds_mean"], kept["epoch_seconds_median"]) == (2.0, 2.0)
    assert (kept["wait_seconds_mean"], kept["wire_seconds_mean"]) == (pytest.approx(0.2), 2.0)
    assert (kept["bytes_sent_mean"], kept["stale_share"]) == (75.0, 0.75)
    assert kept["curve"] == [[2, 10.0, 0.1235], [4, 15.0, 0.5]]
    assert "records" not in kept


def test_share_of_policies_is_that_of_all_training_time(tool: Any) -> None:
    assert tool.reduced(summary())["policy_share"] == 0.0
    assert tool.reduced(summary(policy_seconds=[2.0, None, 1.0, 0.0]))["policy_share"] == pytest.approx(3 / 15)


@pytest.mark.parametrize(
    ("epochs", "shares"),
    [
        ([8, 8], {"8": 1.0}),
        ([{"a": {"2": 30, "8": 10}, "b": {"2": 10}}, {"a": {"4": 50}, "b": {}}], {"2": 0.4, "4": 0.5, "8": 0.1}),
        ([8, {"a": {"2": 10}}, {"a": {"2": 30}}], {"2": 0.6667, "8": 0.3333}),  # as 20 rows
        ([{"a": {}}, {"a": {"16": 5}}], {"16": 1.0}),
        ([{}], {}),
    ],
)
def test_bits_are_shares_of_rows_over_exchanges_and_epochs(
    tool: Any, epochs: list[Any], shares: dict[str, float]
) -> None:
    assert tool.bit_shares(epochs) == shares


def test_runs_without_test_nodes_are_refused(tool: Any) -> None:
    with pytest.raises(SystemExit, match="no test nodes"):
        tool.reduced(summary() | {"test_metric_at_best_val": None})


def test_a_name_always_stands_for_the_same(tool: Any) -> None:
    done = [{"graph": "g", "source": "npz:g.npz", "method": "int8", "definition": tool.definition("int8")}]
    tool.refuse_mixing(done, {"g": tool.described("npz:/some/where/g.npz"), "other": "digits"})
    with pytest.raises(SystemExit, match=r"g was measured as npz:g\.npz and is now digits"):
        tool.refuse_mixing(done, {"g": "digits"})
    with pytest.raises(SystemExit, match="int8 was measured as"):
        tool.refuse_mixing([done[0] | {"definition": "hybrid, 4 bits"}], {})


def test_methods_of_a_seed_follow_each_other_and_differ_in_nothing_else(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["tool", "g=digits", "--seeds", "2", "--models", "gcn", "--methods", "vanilla", "sylvie"]
    monkeypatch.setattr(sys, "argv", [*command, "--rate", "1gbit", "--rate", "unlimited"])
    arguments = tool.parse()
    names = tool.wanted(arguments, "g")
    assert [name[1:2] + name[3:] for name in names[:5]] == [
        ["1gbit", "vanilla", 0], ["1gbit", "sylvie", 0], ["1gbit", "vanilla", 1], ["1gbit", "sylvie", 1],
        ["unlimited", "vanilla", 0]]  # fmt: skip
    vanilla, sylvie = (tool.training(arguments, name) for name in names[2:4])
    assert vanilla["split"] == "random:0.6,0.2,0.2,1"
    assert {key for key in sylvie if sylvie[key] != vanilla.get(key)} == {"name", "strategy", "messages", "policy"}
    uncounted = tool.warm_up([vanilla, sylvie, vanilla])
    assert [(one["name"], one["train"]["epochs"], one["strategy"]) for one in uncounted] == [
        (None, 2, "post"), (None, 2, "hybrid")]  # fmt: skip


def test_every_method_has_a_colour_of_its_own(tool: Any) -> None:
    colours = importlib.import_module("compare_policies_plot").COLOURS
    assert set(colours) == set(tool.METHODS)
    assert len(set(colours.values())) == len(colours)


def test_default_settings_are_those_of_the_command(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "g=digits", "--settings", "defaults", "--hidden", "128"])
    found = tool.settings(tool.parse())
    assert found["model"] == {"layers": 3, "hidden": 128, "norm": "layer", "dropout": 0.5}
    assert (found["train"]["lr"], found["schedule"], found["settings"]) == (0.01, {"schedule": "constant"}, "defaults")


def test_messages_over_epochs_count_what_was_sent(tool: Any) -> None:
    epochs = [{"a": {"8": 3}, "b": {"2": 1}}, {"a": {"2": 5}}, {}]
    assert tool.messages_over_epochs(epochs) == {"exchanges": [2, 1, 0], "bits": [6.5, 2.0, 0.0]}
    assert tool.messages_over_epochs([8, 8]) == {}


# -- what is said of them ----------------------------------------------------------------------------------------------


def test_speed_up_is_the_median_of_paired_ratios(report: Any) -> None:
    measured = runs("vanilla", [80.0] * 3) + runs("int8", [80.0] * 4)
    for run, seconds in zip(measured, [8.0, 4.0, 9.0, 1.0, 2.0, 1.0, 0.001], strict=True):
        run["epoch_seconds_mean"] = seconds
    [methods] = report.cases(measured).values()
    assert report.speed_up(methods, "int8") == 8.0


@pytest.mark.parametrize(("method", "least"), [("adaqp", 2.2), ("sylvie", 8.7), ("pipeqs", 5.0)])
def test_speed_is_judged_where_the_network_has_a_limit(report: Any, method: str, least: float) -> None:
    def said(factor: float, rate: str) -> list[str]:
        measured = runs("vanilla", [80.0], rate=rate, epoch_seconds_mean=factor)
        return answers(report, measured + runs(method, [80.0], rate=rate), f"{method}: speed-up")

    assert said(least + 0.01, "100mbit") == ["yes"]
    assert said(least - 0.01, "100mbit") == ["**no**"]
    for rate in ("unlimited", report.NO_CLUSTER):
        [answer] = said(99.0, rate)
        assert answer.startswith("not judged")


@pytest.mark.parametrize(("share", "said"), [(0.059, "yes"), (0.06, "**no**")])
def test_adaqps_decisions_may_take_six_percent(report: Any, share: float, said: str) -> None:
    measured = VANILLA + runs("adaqp", [80.0] * 10, policy_share=share)
    assert answers(report, measured, "adaqp: share of time") == [said]


@pytest.mark.parametrize(
    ("method", "differences", "said"),
    [
        ("adaqp", [-0.2, -0.3] * 5, ["yes", "yes"]),
        ("adaqp", [-0.4, -0.3] * 5, ["**no**", "yes"]),
        ("adaqp", [-0.6] * 10, ["**no**", "**no**"]),
        ("sylvie", [-3.0, 2.2] * 5, ["yes"]),  # the mean is judged, the interval is shown
        ("pipeqs", [-0.55] * 10, ["**no**"]),
        ("pipeqs", [-0.55] * 9, ["only 9 pairs"]),
        ("sylvie", [0.0], ["only 1 pair"]),
    ],
)
def test_accuracy_is_judged_by_the_mean_of_ten_pairs(
    report: Any, method: str, differences: list[float], said: list[str]
) -> None:
    measured = VANILLA + runs(method, [80 + value for value in differences])
    assert answers(report, measured, f"{method}: accuracy") == said


@pytest.mark.parametrize(
    ("differences", "share", "said"),
    [
        ([0.2, 0.3] * 5, 1.0, "yes: better accuracy"),
        ([0.2, 0.3] * 5, 0.9, "yes: better accuracy and fewer bytes"),
        ([-0.2, 0.3] * 5, 0.9, "yes: better accuracy and fewer bytes, but the interval holds 0"),
        ([0.0] * 10, 0.9, "yes: fewer bytes, but the interval holds 0"),
        ([0.0] * 10, 1.0, "**no**"),
        ([0.2, 0.3] * 5, 1.1, "**no**"),
        ([-0.2, -0.3] * 5, 0.5, "**no**"),
        ([0.2, 0.3], 0.5, "only 2 pairs"),
    ],
)
def test_adaqp_must_gain_something_over_bits_at_random(
    report: Any, differences: list[float], share: float, said: str
) -> None:
    measured = runs("uniform", [80.0] * 10)
    measured += runs("adaqp", [80 + value for value in differences], bytes_sent_mean=share * 1e6)
    assert answers(report, measured, "adaqp against uniform") == [said]


def test_row_of_a_method_says_what_was_measured(report: Any) -> None:
    slow = [[1, 2.0, 0.5], [2, 4.0, 0.75], [3, 6.0, 0.8]]
    values = {"bits": {"2": 0.61, "8": 0.39}, "stale_share": 0.5, "policy_share": 0.034, "epoch_seconds_mean": 0.5}
    adaptive = [*runs("adaqp", [78.0, 80.0, 79.0], **values, curve=slow[:2])]
    adaptive[0]["curve"] = slow
    measured = runs("vanilla", [79.0, 80.0, 81.0]) + adaptive
    [methods] = report.cases(measured).values()
    *_, row = report.table_of(methods, None)
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    assert cells == ["adaqp", "3", "79.00 ± 1.00", "-1.00 [-3.48, +1.48]", "2", "2.00", "1.000", "2: 61 %, 8: 39 %",
                     "50 %", "3.4 %", "0.1", "6, 1 of 3"]  # fmt: skip
    assert report.target_of(methods, None) == pytest.approx(79.0)
    assert report.table_of(methods, 75.0)[-1].endswith("| 4, 3 of 3 |")
    assert report.table_of(methods, 99.0)[-1].endswith("| 0 of 3 |")


def test_mean_curve_ends_at_the_mean_of_what_was_reached() -> None:
    plot = importlib.import_module("compare_policies_plot")
    x, y = plot.mean_curve([[[1, 1.0, 0.0], [2, 3.0, 1.0]], [[1, 2.0, 0.5], [2, 5.0, 0.5]]], 1)
    assert (x[0], x[-1]) == (2.0, 5.0)
    np.testing.assert_allclose([y[0], y[len(y) // 2], y[-1]], [50.0, 75.0, 75.0])


def test_requirements_are_those_of_each_rate(report: Any, tmp_path: Path) -> None:
    slow, fast = runs("vanilla", [80.0], epoch_seconds_mean=9.0), runs("vanilla", [80.0], rate="1gbit")
    measured = slow + fast + runs("sylvie", [80.0]) + runs("sylvie", [80.0], rate="1gbit")
    assert answers(report, measured, "sylvie: speed-up") == ["yes", "**no**"]
    common = {
        "machine": "a machine",
        "ranks": 4,
        "threads": 1,
        "split": "parts",
        "compute": "float32",
        "schedule": {"schedule": "cosine"},
    }
    settings = common | {"model": {"hidden": 8}, "train": {"eval_every": 5}}
    report.write({"settings": settings, "runs": measured}, tmp_path / "out", 75.0)
    text = (tmp_path / "out.md").read_text()
    command = "g=... --rate 100mbit --rate 1gbit --ranks 4 --threads 1 --seeds 1 --models gcn --methods vanilla sylvie "
    assert f"{command}--split parts --compute float32 --hidden 8 --eval-every 5 --target 75 --out docs/out" in text
    assert "| g | gcn | 1gbit | sylvie: speed-up over vanilla | 1.000 | ≥ 8.7 | **no** |" in text


@pytest.mark.launches
def test_one_command_trains_and_writes_the_documents(tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = ["--ranks", "2", "--seeds", "2", "--epochs", "3", "--eval-every", "1", "--hidden", "8", "--layers", "2"]
    choice = ["--models", "gcn", "--methods", "vanilla", "int8"]
    command = [sys.executable, TOOL, "tiny=digits", *small, *choice, "--out", out]

    def printed(*words: Any) -> str:
        # Without what MPI in this process, if another test started it, tells programs that it starts.
        return subprocess.run(words, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout

    assert "4/4 tiny no cluster gcn int8 1" in printed(*command)
    found = json.loads(out.with_suffix(".json").read_text())["runs"]
    assert [(run["method"], run["seed"]) for run in found] == [
        ("vanilla", 0), ("int8", 0), ("vanilla", 1), ("int8", 1)]  # fmt: skip
    assert [run["bits"] for run in found[:2]] == [{"32": 1.0}, {"8": 1.0}]
    assert found[0]["bytes_sent_mean"] > 2 * found[1]["bytes_sent_mean"] > 0
    assert [point[0] for point in found[0]["curve"]] == [1, 2, 3]
    assert len({run["curve"][0][2] for run in found[::2]}) == 2  # another seed is another split and other weights
    picture, text = tmp_path / "out-tiny-gcn.svg", out.with_suffix(".md").read_text()
    assert f"![Test accuracy]({picture.name})" in text
    drawn = picture.read_bytes()
    for written in (picture, out.with_suffix(".md")):
        written.unlink()
    assert printed(*command) == ""  # nothing is trained again
    assert (picture.read_bytes(), out.with_suffix(".md").read_text()) == (drawn, text)
    printed(sys.executable, TOOL, "--report", "--target", "50", "--out", out)
    assert "seconds to target (50.00 %)" in out.with_suffix(".md").read_text()
