"""The processes that a process has started, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def parents_below(process: int) -> dict[int, int]:
    """The parent of each process that ``process``, or a process below it, has started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(entry.name)] = int(_facts(entry)[1])
    found = {}
    for one in parents:
        above = parents[one]
        while above in parents and above != process:
            above = parents[above]
        if above == process:
            found[one] = parents[one]
    return found


def cpu_seconds() -> float:
    """The CPU seconds of this process and of those that it has started, ended ones included."""
    ticks = 0
    for process in (os.getpid(), *parents_below(os.getpid())):
        with contextlib.suppress(OSError):
            ticks += sum(
                map(int, _facts(Path("/proc") / str(process))[11:15])
            )  # its own, and of those that it has waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def _facts(process: Path) -> list[str]:
    """The fields of /proc/PID/stat after the command's name: state, parent and so on (man 5 proc)."""
    return (process / "stat").read_text().rpartition(")")[2].split()
