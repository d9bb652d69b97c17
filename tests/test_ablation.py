"""`tools/ablation.py`: its figures from made-up runs, and the whole of it on a small graph."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_pool import ROOT


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("ablation_report")


def run(
    number: int, rate: str, messages: str, seconds: list[float], host_bytes: list[int] | None = None
) -> dict[str, Any]:
    """Epochs that wait a quarter of their time."""
    names = ["aggregation", "communication_wait", "quantization", "synchronisation", "other"]
    epochs = [
        {"seconds": value, "wire_seconds": 0.0, "bytes_sent": 100}
        | {f"{name}_seconds_mean": value / 4 if name == "communication_wait" else 0.0 for name in names}
        for value in seconds
    ]
    key = {"round": number, "rate": rate, "messages": messages, "label_propagation": 0.0, "overlap": "on",
           "compute": "float32"}  # fmt: skip
    return key | {"epochs": epochs, "metric": 0.5} | ({"host_bytes": host_bytes} if host_bytes else {})


def test_first_epoch_and_counting_round_are_left_out(report: Any) -> None:
    runs = [run(0, "unlimited", "post fp32", [9.0]), run(1, "unlimited", "post fp32", [9.0, 1.0, 2.0]),
            run(2, "unlimited", "post fp32", [9.0, 3.0, 4.0])]  # fmt: skip
    [timing] = report.timings(runs).values()
    assert timing.seconds == 2.5
    assert timing.spread == pytest.approx((3.5 - 1.5) / 2.5)
    assert timing.phases["waiting"] == 2.5 / 4


def test_bytes_are_what_more_epochs_add_on_the_busiest_host(report: Any) -> None:
    runs = [run(0, "unlimited", "post fp32", [1.0], [1000, 50]), run(1, "1gbit", "post fp32", [1.0] * 3, [1200, 650])]
    assert report.largest_bytes(runs, "post fp32") == 300
    assert report.largest_bytes(runs[1:], "post fp32") is None


@pytest.mark.parametrize(("int2", "reached"), [(0.9, True), (1.1, False)])
def test_quantization_must_be_ten_times_faster_at_100_mbit(report: Any, int2: float, reached: bool) -> None:
    runs = [run(1, "100mbit", "post fp32", [10.0, 10.0]), run(1, "100mbit", "hybrid int2", [10.0, int2])]
    [line] = report.requirements(runs)
    assert line.measured == pytest.approx(10 / int2)
    assert line.reached is reached


@pytest.mark.parametrize(("int2", "reached"), [(2.1, True), (2.3, False)])
def test_quantization_may_cost_a_tenth_without_a_limit(report: Any, int2: float, reached: bool) -> None:
    seconds = {"post fp32": 3.0, "hybrid fp32": 2.0, "hybrid int2": int2}
    [line] = report.requirements([run(1, "unlimited", name, [9.0, value]) for name, value in seconds.items()])
    assert line.measured == pytest.approx(int2 / 2)
    assert line.reached is reached


@pytest.mark.parametrize(("epoch_bytes", "bound"), [(12_500_000, 1.0), (100_000_000, 8.0), (1, 0.75)])
def test_bound_of_fp32_is_the_larger_of_bytes_and_compute(report: Any, epoch_bytes: int, bound: float) -> None:
    runs = [run(0, "unlimited", "hybrid fp32", [1.0], [500]),
            run(1, "unlimited", "hybrid fp32", [1.0, 1.0], [500 + epoch_bytes]),
            run(1, "100mbit", "hybrid fp32", [9.0, 9.0], [500 + epoch_bytes])]  # fmt: skip
    [line] = report.requirements(runs)
    assert line.measured == pytest.approx(9 / bound)


def test_finished_runs_are_not_repeated_nor_mixed_with_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    measure = importlib.import_module("measure")
    path = tmp_path / "runs.json"
    measure.Records(path, {"hidden": 8}).add({"round": 1, "rate": "1gbit", "seconds": 2.0})
    records = measure.Records(path, {"hidden": 8})
    assert records.has(("round", "rate"), (1, "1gbit"))
    assert not records.has(("round", "rate"), (2, "1gbit"))
    records.add({"round": 2, "rate": "1gbit", "seconds": 3.0})
    assert [run["seconds"] for run in measure.Records(path, {"hidden": 8}).runs] == [2.0, 3.0]
    with pytest.raises(SystemExit, match="other settings"):
        measure.Records(path, {"hidden": 16})


def test_commands_are_those_that_made_the_parts(report: Any) -> None:
    options = {"split": "random:0.6,0.2,0.2", "features": None, "row_normalise": True, "self_loops": False}
    graph = {"source": "npz:g.npz", "options": options, "seed": {"split": 3}, "method": "metis", "objective": "cut"}
    convert, partition = report.commands(graph, 4)
    assert convert == "hpcgnn convert npz:g.npz graph.h5 --split random:0.6,0.2,0.2,3 --row-normalise"
    assert partition == "hpcgnn partition graph.h5 parts.h5 --parts 4 --method metis --objective cut"


@pytest.mark.launches
def test_one_command_measures_and_writes_the_documents(tmp_path: Path) -> None:
    graph, out = tmp_path / "graph.h5", tmp_path / "out"
    hpcgnn = [sys.executable, "-m", "hpcgnn"]
    subprocess.run([*hpcgnn, "convert", "digits", graph, "--quiet"], check=True)
    choice = ["--messages", "post fp32", "hybrid int2", "--label-propagation", "0", "--overlap", "on"]
    small = ["--ranks", "2", "--hidden", "8", "--layers", "2", "--epochs", "2", "--rounds", "1"]
    command = [sys.executable, ROOT / "tools" / "ablation.py", graph, *choice, *small, "--out", out]
    # Without what MPI in this process, if another test started it, tells programs that it starts.
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
    assert "2/2 runs" in printed
    found = json.loads(out.with_suffix(".json").read_text())
    assert [one["messages"] for one in found["runs"]] == ["post fp32", "hybrid int2"]
    sent = [one["epochs"][1]["bytes_sent"] for one in found["runs"]]
    assert sent[0] > 4 * sent[1] > 0
    assert "<svg" in out.with_suffix(".svg").read_text()
    text = out.with_suffix(".md").read_text()
    assert "| both (overlap on) | post fp32 to hybrid int2 |" in text
    out.with_suffix(".md").unlink()
    subprocess.run([sys.executable, ROOT / "tools" / "ablation.py", "--report", "--out", out], check=True)
    assert out.with_suffix(".md").read_text() == text
