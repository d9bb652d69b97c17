"""The verdicts of the section ``network`` on made-up results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from campaign.network import settings, verdict
from campaign.processes import Ended
from campaign.rank_job import Outcome
from hpcgnn.train import archive

STALLED = "hpcgnn: error on rank {0}: rank {0} of 2 waited 4 s for gradients: a peer or a link has stopped (raise --timeout)\n"


def run(folder: Path, losses: list[float], weight: float = 1.0) -> Path:
    """The folder of a run with these losses and this weight."""
    (folder / "checkpoints").mkdir(parents=True)
    lines = [json.dumps({"epoch": epoch, "loss": loss}) + "\n" for epoch, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    for name in ("last.pt", "best.pt"):
        archive.write(folder / "checkpoints" / name, {"model": {"w": torch.tensor([weight])}})
    return folder


def test_a_last_bit_is_told(tmp_path: Path) -> None:
    right = run(tmp_path / "right", [1.5, 0.25])
    assert verdict.wrong_result(run(tmp_path / "same", [1.5, 0.25]), right) == ""
    assert "epoch 1 has loss" in verdict.wrong_result(run(tmp_path / "loss", [1.5, 0.25 + 2**-54]), right)
    assert "other weights" in verdict.wrong_result(run(tmp_path / "weight", [1.5, 0.25], 1 + 2**-23), right)
    assert "1 epochs, not 2" in verdict.wrong_result(run(tmp_path / "short", [1.5]), right)


def test_a_run_that_was_ended_has_the_beginning_of_another(tmp_path: Path) -> None:
    right = verdict.numbers(run(tmp_path / "right", [1.5, 0.25]))
    assert verdict.wrong_beginning(right[:1], right) == ""
    assert "epoch 0" in verdict.wrong_beginning([["0x1p+0", *right[0][1:]]], right)
    assert "more than" in verdict.wrong_beginning([*right, right[0]], right)
    evaluated = [right[0], [right[1][0], *["0x1p-1"] * 3]]
    assert "epoch 1 has train_metric" in verdict.wrong_beginning(right, evaluated)
    assert verdict.wrong_beginning(right, evaluated, replayed=True) == ""
    assert "epoch 1 has loss" in verdict.wrong_beginning([right[0], ["none", *right[1][1:]]], evaluated, replayed=True)


@pytest.mark.parametrize(
    ("ended", "seconds", "wrong"),
    [
        (Ended(1, "", STALLED.format(0) + STALLED.format(1), 9), 9, ""),
        (Ended(1, "", STALLED.format(0), 9), 9, "ranks [1] did not say"),
        (Ended(1, "", STALLED.format(0) + STALLED.format(1), 9), 99, "ended 99 s after"),
        (Ended(0, "", "", 9), 9, "exit code 0"),
        (Ended(None, "", "", 9), 9, "hangs"),
        (Ended(1, "", "Traceback (most recent call last)\n", 9), 9, "a traceback"),
        (Ended(-11, "", "", 9), 9, "exit code -11"),
    ],
)
def test_how_a_job_may_be_ended(ended: Ended, seconds: float, wrong: str) -> None:
    outcome = Outcome(ended, reached=True, seconds=seconds, hangs=ended.exit is None)
    found = verdict.wrong_stop(outcome, ranks=2, silent=[], most_seconds=20)
    assert found.startswith(wrong) if wrong else found == ""


def test_ranks_that_differ_are_told() -> None:
    assert verdict.wrong_weights(Outcome(None, True, 1.0, weights=("a", "a"))) == ""
    assert "differ" in verdict.wrong_weights(Outcome(None, True, 1.0, weights=("a", "b")))
    assert "differ" in verdict.wrong_weights(Outcome(None, True, 1.0))


def test_every_wait_has_a_phase() -> None:
    waits = {"layer 2's gradients": 6, "gradients": 12, "metric counts": 2, "MPI in neighbours": 1, "a reduction": 9}
    found = settings.by_phase(waits)
    assert found["backward"] == ["layer 2's gradients"]
    assert found["reduction of gradients"] == ["gradients"]
    assert found["calls of MPI that block"] == ["MPI in neighbours"]
    assert found["start"] == ["a reduction"]
