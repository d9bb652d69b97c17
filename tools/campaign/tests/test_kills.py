"""The section on kills: its kills, and the detection of differences from an undisturbed command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from campaign.kills import strike
from campaign.kills.cases import CHECKPOINT, Undisturbed, compare, plans
from campaign.kills.jobs import training

JOB = training(2, "", 3)


def write_run(folder: Path, losses: list[float], weight: float = 1.0) -> None:
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    lines = [{"epoch": k, "loss": loss, "val_metric": 0.5, "test_metric": 0.5} for k, loss in enumerate(losses)]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("last.pt", "best.pt"):
        torch.save({"model": {"w": torch.tensor([weight])}, "next_epoch": len(losses)}, checkpoints / name)


@pytest.fixture
def alone(tmp_path: Path) -> Undisturbed:
    folder = tmp_path / "alone"
    write_run(folder, [0.3, 0.2, 0.1])
    return Undisturbed(JOB.made(folder), strike.names(folder), 1.0, 0.5, folder)


@pytest.fixture
def again(alone: Undisturbed, tmp_path: Path) -> Path:
    return Path(shutil.copytree(alone.folder, tmp_path / "again"))


def test_the_same_run_is_right(alone, again):
    assert compare(JOB, again, alone) == ""


@pytest.mark.parametrize(
    "name",
    ["run/checkpoints/.last.pt.host.1.hpcgnn.tmp", ".parts.h5.work", "tmp/socket"],
    ids=["file", "folder", "TMPDIR"],
)
def test_what_is_left_behind_is_told(alone, again, name):
    (again / name).parent.mkdir(exist_ok=True)
    (again / name).touch()
    assert name in compare(JOB, again, alone)


def test_files_of_open_mpi_are_not_hpcgnns(alone, again):
    (again / "tmp" / "ompi.host.0" / "pid.1").mkdir(parents=True)
    (alone.names).add("tmp")
    assert compare(JOB, again, alone) == ""


@pytest.mark.parametrize(
    ("losses", "weight", "what"),
    [
        ([0.3, 0.2, np.nextafter(0.1, 1)], 1.0, "losses"),
        ([0.3, 0.2], 1.0, "epochs"),
        ([0.3, 0.2, 0.1], float(np.nextafter(np.float32(1), np.float32(2))), "last.pt: model"),
    ],
)
def test_another_result_is_told(alone, tmp_path, losses, weight, what):
    write_run(tmp_path / "again", losses, weight)
    assert what in compare(JOB, tmp_path / "again", alone)


def test_an_epoch_told_twice_is_told(alone, again):
    path = again / "run" / "metrics.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert "epochs" in compare(JOB, again, alone)


def test_half_a_checkpoint_is_told(alone, again):
    path = again / "run" / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:100])
    assert "cannot be read" in compare(JOB, again, alone)


def test_the_long_form_kills_a_hundred_times_and_everything():
    kills = Counter((plan.job.name.partition(" on")[0], plan.job.ranks, plan.who) for plan in plans(short=False))
    assert kills.total() >= 100
    assert {("convert", 0, "process"), ("partition", 0, "process"), ("plan", 0, "process")} < kills.keys()
    assert {
        ("train", ranks, who) for ranks in (2, 4) for who in ("one rank", "launcher", "launcher and ranks")
    } < kills.keys()
    assert sum(plan.moment == CHECKPOINT for plan in plans(short=False)) >= 10


def test_a_process_and_its_children_are_killed():
    child = "import time; print(1, flush=True); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    family = strike.family(process.pid)
    assert len(family) == 2
    assert strike.kill(family)
    assert strike.until_ended(family, 30) is not None
    process.wait()
    process.stdout.close()
    assert not strike.kill([process.pid])
    assert os.getpid() not in family
