"""What a process costs beside its part of the graph: the time until it trains, and memory that it shares with no other."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PRIVATE = ("Private_Clean:", "Private_Dirty:")
_START_FIELD = 19  # of stat behind the command's name, which is in brackets and may hold spaces: proc(5)


def private_memory_bytes(process: int | str = "self") -> int:
    """Resident memory of a process, of this one by default, that no other process maps: what one more on the same host takes. 0
    where the system does not tell, which Linux does, or the process has ended.

    Pages of libraries count where this process is the only one that has them.
    """
    return mapped_bytes(process, _PRIVATE)


def mapped_bytes(process: int | str, kinds: tuple[str, ...]) -> int:
    """Bytes of these kinds, such as ``"Pss:"``, of a process or of ``"self"`` (proc(5), smaps_rollup). 0 where the system does
    not tell, or the process has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))


def seconds_since_start() -> float:
    """Since the system started this process, imports included; 0 where the system does not tell, which Linux does."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return 0.0
    started = int(stat.rpartition(")")[2].split()[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
