"""Killing processes of a command, and what is there afterwards."""

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
# Open MPI's, of a launcher that was killed or a rank that was killed while it entered MPI.
_OF_OPEN_MPI = re.compile(r"ompi\..+|vader_segment\..+|osc_[a-z]+\..+")
ONE_RANK, ALL_RANKS, LAUNCHER, PROCESS = "one rank", "launcher and ranks", "launcher", "process"


def victims(process: subprocess.Popen[str], who: str, chance: np.random.Generator) -> list[int]:
    """Which processes of the command are to be killed; none where it has ended, or has no ranks yet."""
    if process.poll() is not None:
        return []
    if who == ONE_RANK:
        ranks = sorted(ranks_of(process.pid).items())
        return [int(ranks[chance.integers(len(ranks))][1])] if ranks else []
    return family(process.pid) if who == ALL_RANKS else [process.pid]


def family(root: int) -> list[int]:
    """A process and all that it and its children have started and that is there."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for process in found:  # which grows meanwhile
        found.extend(child for child, parent in parents.items() if parent == process)
    return found


def is_running(process: int) -> bool:
    """Return whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def kill(processes: list[int]) -> bool:
    """End them by SIGKILL; whether there was one."""
    hit = False
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            hit |= is_running(process)
            os.kill(process, signal.SIGKILL)
    return hit


def until_ended(processes: list[int], seconds: float) -> float | None:
    """How long it takes until none of them is there; None where that is longer than ``seconds``, and they are ended then."""
    started = time.monotonic()
    while any(map(is_running, processes)):
        if time.monotonic() > started + seconds:
            kill(processes)
            return None
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - started


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str], *, poll: float = _POLL_SECONDS) -> None:
    """Until something is so or the command has ended."""
    while process.poll() is None and not is_so():
        time.sleep(poll)


def names(folder: Path) -> set[str]:
    """Of all that is in a folder and below."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def temporaries(folder: Path) -> Iterator[str]:
    """Names of files that are being written to a run's checkpoints."""
    for place in (folder / "run" / "checkpoints", folder / "run" / "checkpoints" / "messages"):
        with contextlib.suppress(OSError):
            yield from (entry.name for entry in os.scandir(place) if entry.name.endswith(".tmp"))


def lines_in(path: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def jobs_of(processes: list[int]) -> set[str]:
    """The names that Open MPI gives to what the jobs of these ranks share, as far as they are there still."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
            found |= {f"{int(word.partition('=')[2]):x}" for word in words if word.startswith(f"{_JOB}=")}
    return found


def shared_memory() -> set[str]:
    """Names of what processes of this machine share."""
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()


def is_of_open_mpi(name: str) -> bool:
    """Return whether Open MPI gave a file, in a folder for temporary ones or in shared memory, its name."""
    return _OF_OPEN_MPI.match(name) is not None


def remove_shared_memory(jobs: set[str]) -> int:
    """Remove what Open MPI has left of these jobs, which have ended; how many files that were."""
    left = [name for name in shared_memory() if is_of_open_mpi(name) and any(f".{job}." in name for job in jobs)]
    for name in left:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    return len(left)
