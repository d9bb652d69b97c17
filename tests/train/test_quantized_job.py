"""Training with low bit-widths through the command line: it repeats, resumes, counts its bytes and reports NaNs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_pool import Completed

from hpcgnn.comm.thread_world import one_rank
from hpcgnn.train import checkpoint

pytestmark = pytest.mark.mpi

HPCGNN = ["-m", "hpcgnn"]
FLAGS = ["--layers", "2", "--hidden", "64", "--checkpoint-every", "5", "--quiet"]


@pytest.fixture
def train(mpi_ranks, parts, tmp_path):
    """Run ``hpcgnn train`` on two ranks, and return the run folder."""

    def run(name: str, *flags: str, check: bool = True, threads: int = 1) -> Completed:
        command = ["train", parts, "--out", tmp_path / name, *FLAGS, *flags]
        return mpi_ranks(2).command(*command, check=check, threads=threads)

    return run


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def last(folder: Path) -> tuple[list[float], dict[str, bytes]]:
    """All losses, and the bytes of the weights."""
    losses = [record["loss"] for record in records(folder)]
    content = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    return losses, {name: value.numpy().tobytes() for name, value in content["model"].items()}


@pytest.mark.parametrize(
    ("flags", "threads"),
    [(["--bits", "2"], 2), (["--bits", "1", "--message-coding", "delta", "--dropout", "0"], 1)],
)
def test_a_run_repeats_and_resumes_bit_for_bit(train, tmp_path, flags, threads):
    train("whole", *flags, "--epochs", "10", threads=threads)
    train("broken", *flags, "--epochs", "5", threads=threads)
    train("broken", "--resume", "--epochs", "10", threads=threads)
    assert last(tmp_path / "broken") == last(tmp_path / "whole")
    exact, _ = last(tmp_path / "whole")
    assert exact[-1] < exact[0]


def test_differences_start_from_zero_with_another_strategy(train, tmp_path):
    """Stored rows belong to one plan. For another plan they would be wrong, or outside of memory."""
    flags = ["--bits", "2", "--message-coding", "delta", "--dropout", "0"]
    train("run", *flags, "--epochs", "5")
    train("run", "--resume", "--strategy", "pre", "--epochs", "10")
    losses, _ = last(tmp_path / "run")
    assert losses[-1] < losses[0]


def test_what_the_last_checkpoint_needs_is_kept(tmp_path):
    """Even if a killed run left the files of an incomplete checkpoint."""
    checkpoint.folder(tmp_path).mkdir()
    for epoch in (5, 10, 20, 15):
        checkpoint.save_messages(one_rank(), tmp_path, epoch, {"kept": {}})
    found = sorted(path.name for path in (checkpoint.folder(tmp_path) / checkpoint.MESSAGES).iterdir())
    assert found == ["10-0.pt", "15-0.pt"]


def test_the_bytes_of_a_run_follow_from_its_plan(train, parts, tmp_path):
    train("run", "--bits", "2", "--epochs", "2", "--model", "gcn")
    plan = subprocess.run(
        [sys.executable, *HPCGNN, "plan", str(parts), "--json"], check=True, capture_output=True, text=True
    )
    rows = [post + pre for _, _, post, pre in json.loads(plan.stdout)["pairs"]["hybrid"]]

    def segment(count: int, width: int) -> int:
        """The bytes between two ranks: payload and 4 bytes of parameters for each row, in blocks of 64."""
        payload = -(-count * -(-width * 2 // 8) // 4) * 4
        return -(-(payload + 4 * count) // 64) * 64

    # The 9 features are aggregated unchanged, without a backward exchange; the 4 classes are exchanged in both directions.
    expected = sum(segment(count, 9) + 2 * segment(count, 4) for count in rows)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["bytes_sent_per_epoch"] == expected > 0


def test_trouble_in_a_message_is_named_with_layer_and_rank(train):
    result = train("run", "--bits", "2", "--norm", "none", "--lr", "1e20", check=False)
    assert result.returncode != 0
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: error")]
    assert re.search(r"layer 2's boundary rows of rank \d held NaN or infinite values in epoch 1", sentence)


def test_differences_and_dropout_are_refused_together(train):
    result = train("run", "--bits", "2", "--message-coding", "delta", check=False)
    assert "--message-coding delta needs --dropout 0" in result.stderr
    assert result.returncode == 1


def test_what_is_sent_does_not_depend_on_when_a_rank_waits(train, tmp_path):
    train("on", "--bits", "2", "--epochs", "5")
    train("off", "--bits", "2", "--epochs", "5", "--overlap", "off", "--collective", "neighbour")
    assert last(tmp_path / "on") == last(tmp_path / "off")


def test_a_kept_input_aggregation_changes_bytes_alone(train, tmp_path):
    """This holds with float32 messages; at low bit-widths, the omitted exchange was a rounded one."""
    wide = ["--epochs", "3", "--hidden", "256"]  # so wide that features are aggregated before they are transformed
    train("anew", *wide)
    train("kept", *wide, "--cache-input-aggregation")
    assert last(tmp_path / "kept") == last(tmp_path / "anew")
    sent = {name: records(tmp_path / name)[-1]["bytes_sent"] for name in ("anew", "kept")}
    assert 0 < sent["kept"] < sent["anew"]


@pytest.mark.parametrize("flags", [["--input-dropout", "0.5"], ["--label-propagation", "0.5"]])
def test_an_input_that_changes_is_not_kept(train, flags):
    refused = train("run", "--cache-input-aggregation", *flags, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("the aggregation of the input cannot be kept") == 1
