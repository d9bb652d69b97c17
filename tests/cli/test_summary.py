"""The table at the end of a training: the result first, and nothing that is zero or does not apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcgnn.cli import train_job

PHASES = ("aggregation_seconds", "wire_seconds", "quantization_seconds", "policy_seconds", "other_seconds")
SUMMARY = {
    "metric_name": "accuracy",
    "epochs": 9,
    "stop_reason": None,
    "finished": True,
    "best_val_metric": 0.5,
    "test_metric_at_best_val": 0.25,
    "best_epoch": 7,
    "epoch_seconds_median": 0.5,
    "epoch_seconds_mean": 0.75,
    "breakdown_seconds_per_epoch": dict.fromkeys(PHASES, 0.125),
    "breakdown_seconds_mean_per_epoch": dict.fromkeys(PHASES, 0.0625),
    "compute": "float32",
    "bytes_sent_per_epoch": 4096.0,
    "bytes_between_nodes_per_epoch": 1024.0,
    "bytes_shared_on_nodes_per_epoch": 2048.0,
    "bits_policy": "sylvie",
    "bits_shares": {"2": 0.75, "4": 0.25},
    "staleness": "sylvie",
    "stale_share": 0.0,
    "peak_memory_bytes_per_rank": 3 << 20,
    "devices": {"CPU": 2},
    "node_orders": {"none": 1, "rcm": 1},
    "ranks": 2,
    "threads_per_rank": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def lines_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of pytest-xdist have a width of their own."""
    monkeypatch.delenv("COLUMNS", raising=False)


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    """The lines of the table, with single spaces."""
    train_job._show(SUMMARY | changes, Path("run"))
    title, *lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert title == "training finished"
    return lines


def test_the_result_comes_first_and_all_that_applies_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == [
        "best validation accuracy 50.00 % in epoch 7",
        "test accuracy in that epoch 25.00 %",
        "epochs 9",
        "seconds per epoch, slowest rank (median) 0.5000",
        "seconds per epoch without the first, slowest rank (mean) 0.7500",
        "aggregation 0.1250 on the slowest rank, mean 0.0625",
        "wire (overlaps the others) 0.1250 on the slowest rank, mean 0.0625",
        "quantization 0.1250 on the slowest rank, mean 0.0625",
        "policy 0.1250 on the slowest rank, mean 0.0625",
        "other 0.1250 on the slowest rank, mean 0.0625",
        "arithmetic of dense products float32",
        "bytes sent per epoch, all ranks 4,096",
        "between nodes 1,024",
        "bytes read in shared memory per epoch 2,048",
        "bit-widths, by share of rows 2: 75 %, 4: 25 % (sylvie)",
        "epochs with stale rows 0 % (sylvie)",
        "peak memory per rank, largest 3.0 MiB",
        "node order x ranks rcm x 1",
        "ranks x threads 2 x 1",
        "run folder run",
    ]


def test_zeros_and_what_nobody_asked_for_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As in a run on one rank, where no message is sent."""
    seconds = dict.fromkeys(PHASES, 4e-05) | {"other_seconds": 0.25}
    none = dict.fromkeys((name for name in SUMMARY if name.startswith("bytes_")), 0.0)
    plain = {"bits_policy": "fixed", "staleness": "off", "node_orders": {"none": 1}, "ranks": 1}
    assert shown(capsys, breakdown_seconds_per_epoch=seconds, **none, **plain) == [
        "best validation accuracy 50.00 % in epoch 7",
        "test accuracy in that epoch 25.00 %",
        "epochs 9",
        "seconds per epoch, slowest rank (median) 0.5000",
        "seconds per epoch without the first, slowest rank (mean) 0.7500",
        "other 0.2500 on the slowest rank, mean 0.0625",
        "arithmetic of dense products float32",
        "peak memory per rank, largest 3.0 MiB",
        "ranks x threads 1 x 1",
        "run folder run",
    ]
    assert not any("stale" in line for line in shown(capsys, staleness="off"))


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        ((0.5, None, 7), ["best validation accuracy 50.00 % in epoch 7", "epochs 9"]),
        ((None, 0.5, 8), ["test accuracy 50.00 % in epoch 8, the last that was evaluated: nothing is for validation"]),
        ((None, None, 8), ["accuracy not measured: there are neither validation nor test labels", "epochs 9"]),
        ((None, None, -1), ["accuracy not measured: no epoch was evaluated", "epochs 9"]),
    ],
)
def test_what_was_not_measured_is_said_once(
    capsys: pytest.CaptureFixture[str], metrics: tuple[float | None, float | None, int], lines: list[str]
) -> None:
    names = ("best_val_metric", "test_metric_at_best_val", "best_epoch")
    assert shown(capsys, **dict(zip(names, metrics, strict=True)))[: len(lines)] == lines
