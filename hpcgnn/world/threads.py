"""The number of threads of a rank: one for each core that the launcher bound it to, or a fair share of cores without binding."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from hpcgnn.world.world import World


def use_threads(world: World) -> int:
    """Set torch's (and with it the kernels') threads for this rank; returns the number. Collective.

    ``OMP_NUM_THREADS`` wins. Without it, a rank divides the cores that it may run on by the number of ranks that may run on the
    same cores. So both a launcher's binding and a container's set of cores are respected. Rank 0 warns if it starts more threads
    than that share, because an epoch may then take several times as long.
    """
    sharing = world.ranks_on_my_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    fair = max(1, len(os.sched_getaffinity(0)) // sharing)
    threads = int(asked) if asked.isdigit() and int(asked) > 0 else fair
    if threads > fair and world.rank == 0:
        shared = f", which {sharing} ranks share" if sharing > 1 else ""
        logging.getLogger("hpcgnn").warning(
            "OMP_NUM_THREADS=%s starts %d threads on a rank with %d CPUs%s, so that threads wait for each other: set it to %d, "
            "or unset it",
            *(asked, threads, len(os.sched_getaffinity(0)), shared, fair),
        )
    torch.set_num_threads(threads)
    return threads


def openmp_runtimes() -> list[str]:
    """Paths of the OpenMP runtimes in this process: more than one means two thread pools that fight for the cores."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    names = ("libgomp", "libiomp", "libomp")
    return sorted(path for path in paths if os.path.basename(path).startswith(names))
