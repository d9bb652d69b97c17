"""Counts of the requests of ranks to MPI, by a library in front of MPI's own (``counts.c``)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class Count:
    """A line of a rank. reductions: number of all-reduces started so far. under_way: number of requests that are not complete.
    communicators, types, windows, groups: number of objects that exist. allocated: bytes allocated by malloc.
    """

    reductions: int
    under_way: int
    communicators: int
    types: int
    windows: int
    groups: int
    allocated: int


def library(folder: Path) -> Path | None:
    """Compile the library; None if no ``mpicc`` can compile it."""
    compiler, path = shutil.which("mpicc"), folder / "counts.so"
    if compiler is None:
        return None
    done = subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", path, _SOURCE], capture_output=True, check=False)
    return path if done.returncode == 0 else None


def variables(library: Path, prefix: Path, every: int) -> dict[str, str]:
    """Environment variables for the ranks, each of which writes a line to ``PREFIX.PID`` after every few all-reduces."""
    return {"LD_PRELOAD": str(library), "SOAK_COUNTS": str(prefix), "SOAK_EVERY": str(every)}


def read(prefix: Path) -> dict[int, list[Count]]:
    """The lines of each rank, by process id. Processes that started no reduction are not ranks."""
    found = {}
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        lines = [_count(line) for line in path.read_text().splitlines()]
        if lines and lines[-1].reductions:
            found[int(path.suffix[1:])] = lines
    return found


def _count(line: str) -> Count:
    reductions, made, complete, *others = map(int, line.split())
    return Count(reductions, made - complete, *others)
