"""Trainings that run in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hpcgnn.launch import mpiexec

HPCGNN = ["-m", "hpcgnn"]


def start(parts: Path, out: Path, *flags: str) -> subprocess.Popen:
    """Start ``hpcgnn train`` on two ranks."""
    command = [*mpiexec.command(2), sys.executable, *HPCGNN, "train", str(parts), "--out", str(out), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_epoch(out: Path, epoch: int, process: subprocess.Popen) -> None:
    """Wait until this many epochs are recorded."""
    deadline = time.monotonic() + 90
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < epoch:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "training never came this far"
        time.sleep(0.005)
