"""Kills processes of a command, and finds files and processes that are left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rank_pool import ranks_of

_POLL_SECONDS = 0.02
_SHARED_MEMORY = Path("/dev/shm")
_JOB = "OMPI_MCA_orte_ess_jobid"
# Names of shared memory of Open MPI, which leaves it behind if a launcher is killed, or a rank while it enters MPI.
_OF_OPEN_MPI = re.compile(r"ompi\..+|vader_segment\..+|osc_[a-z]+\..+")
ONE_RANK, ALL_RANKS, LAUNCHER, PROCESS = "one rank", "launcher and ranks", "launcher", "process"


def victims(process: subprocess.Popen[str], who: str, chance: np.random.Generator) -> list[int]:
    """The processes of the command to kill; none if it has ended, or has no ranks yet."""
    if process.poll() is not None:
        return []
    if who == ONE_RANK:
        ranks = sorted(ranks_of(process.pid).items())
        return [int(ranks[chance.integers(len(ranks))][1])] if ranks else []
    return family(process.pid) if who == ALL_RANKS else [process.pid]


def family(root: int) -> list[int]:
    """A process and all existing processes that it and its children have started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for process in found:  # the list grows during the loop
        found.extend(child for child, parent in parents.items() if parent == process)
    return found


def is_running(process: int) -> bool:
    """Return whether such a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def kill(processes: list[int]) -> bool:
    """Send them SIGKILL, and return whether there was one."""
    hit = False
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            hit |= is_running(process)
            os.kill(process, signal.SIGKILL)
    return hit


def until_ended(processes: list[int], seconds: float) -> float | None:
    """The seconds until none of them exists; None if that takes longer than ``seconds``, after which they are killed."""
    started = time.monotonic()
    while any(map(is_running, processes)):
        if time.monotonic() > started + seconds:
            kill(processes)
            return None
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - started


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str], *, poll: float = _POLL_SECONDS) -> None:
    """Wait until a condition holds or the command has ended."""
    while process.poll() is None and not is_so():
        time.sleep(poll)


def names(folder: Path) -> set[str]:
    """The names of all files in a folder and below."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def temporaries(folder: Path) -> Iterator[str]:
    """The names of files that are being written among a run's checkpoints."""
    for place in (folder / "run" / "checkpoints", folder / "run" / "checkpoints" / "messages"):
        with contextlib.suppress(OSError):
            yield from (entry.name for entry in os.scandir(place) if entry.name.endswith(".tmp"))


def lines_in(path: Path) -> int:
    """The number of complete lines in a file, which need not exist yet."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def jobs_of(processes: list[int]) -> set[str]:
    """The names of shared memory that Open MPI created for the jobs of these ranks, as far as it still exists."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
            found |= {f"{int(word.partition('=')[2]):x}" for word in words if word.startswith(f"{_JOB}=")}
    return found


def shared_memory() -> set[str]:
    """The names of the shared memory of this machine."""
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()


def is_of_open_mpi(name: str) -> bool:
    """Return whether a temporary file or shared memory has a name of the kind that Open MPI uses."""
    return _OF_OPEN_MPI.match(name) is not None


def remove_shared_memory(jobs: set[str]) -> int:
    """Remove shared memory that Open MPI has left of these jobs, which have ended; return the number of files."""
    left = [name for name in shared_memory() if is_of_open_mpi(name) and any(f".{job}." in name for job in jobs)]
    for name in left:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    return len(left)
