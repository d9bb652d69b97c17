"""Costs of a process beside its part of the graph: seconds until it trains, and memory that it shares with no other process."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PRIVATE = ("Private_Clean:", "Private_Dirty:")
# Index of the start time in stat (proc(5)), counted after the command's name, which is in brackets and may have spaces.
_START_FIELD = 19


def private_memory_bytes(process: int | str = "self") -> int:
    """Resident memory, in bytes, that no other process maps: the memory that one more such process on the host would take.

    process: its id, or ``"self"``. Pages of libraries count only if no other process has them. 0 where the system has no
    ``/proc`` (only Linux has), or the process has ended.
    """
    return mapped_bytes(process, _PRIVATE)


def mapped_bytes(process: int | str, kinds: tuple[str, ...]) -> int:
    """Bytes of some kinds of memory, such as ``"Pss:"``, of a process or of ``"self"`` (proc(5), smaps_rollup). 0 where the
    system has no ``/proc``, or the process has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))


def seconds_since_start() -> float:
    """Seconds since the system started this process, imports included; 0 where the system has no ``/proc``."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return 0.0
    started = int(stat.rpartition(")")[2].split()[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
