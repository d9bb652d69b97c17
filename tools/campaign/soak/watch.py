"""The resources of a running job, seen from outside: a sample of every rank each time that the job has run some more epochs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rank_pool import ranks_of

from hpcgnn.base.process import private_memory_bytes

_PAUSE_SECONDS = 0.1
_SHARED_MEMORY = "/dev/shm/"  # found among the memory mappings of ranks


@dataclass(frozen=True)
class Sample:
    """A sample of a rank. epoch: progress of the job. memory: bytes of private memory. files, threads: number of open files,
    and of threads.
    """

    epoch: int
    memory: int
    files: int
    threads: int


@dataclass
class Watched:
    """The samples of a job. samples: by process id. shared: files of shared memory that ranks have mapped. last_epoch: progress
    of the job.
    """

    samples: dict[int, list[Sample]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    last_epoch: int = 0


def watch(
    process: subprocess.Popen[str], ranks: int, epochs_done: Callable[[], int], every: int, seconds: float
) -> Watched:
    """Sample all ranks of a launcher every few epochs until it ends, or for some seconds."""
    found, ends = Watched(), time.monotonic() + seconds
    pids: list[int] = []
    while process.poll() is None and time.monotonic() < ends:
        time.sleep(_PAUSE_SECONDS)
        epoch = epochs_done()
        if epoch < found.last_epoch + every:
            continue
        found.last_epoch = epoch
        if len(pids) < ranks:
            pids = list(ranks_of(process.pid).values())
        for pid in pids:
            sample = _sample(pid, epoch)
            if sample is not None:
                found.samples.setdefault(pid, []).append(sample)
                found.shared |= _mapped_in_shared_memory(pid)
    return found


def _sample(pid: int, epoch: int) -> Sample | None:
    """A sample of a process, or None if it has ended."""
    try:
        files, threads = (len(list(Path(f"/proc/{pid}/{what}").iterdir())) for what in ("fd", "task"))
    except OSError:
        return None
    memory = private_memory_bytes(pid)
    return Sample(epoch, memory, files, threads) if memory else None


def _mapped_in_shared_memory(pid: int) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(_SHARED_MEMORY)}
    return {path for path in paths if not path.endswith(" (deleted)")}


def lines_of(path: Path) -> int:
    """The number of lines in a file; 0 if it does not exist yet."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
