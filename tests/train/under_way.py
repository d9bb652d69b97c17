"""Trainings that run in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rank_pool import ranks_of
from virtual_clusters import wait_until

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


def kill(process: subprocess.Popen) -> None:
    """Kill the launcher and both ranks, and wait until the ranks have gone: only then does the system release their locks."""
    ranks = ranks_of(process.pid)
    assert sorted(ranks) == [0, 1]
    os.killpg(process.pid, signal.SIGKILL)  # the launcher, but not ranks that it has put into their own group
    for rank in ranks.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks.values()), "end of the killed ranks")
