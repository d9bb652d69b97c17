"""How many threads a rank uses: what its launcher bound it to, shared fairly where it bound nothing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hpcgnn.comm.world import World


def use_threads(world: World) -> int:
    """Set torch's (and with it the kernels') threads for this rank; returns the number. Collective.

    ``OMP_NUM_THREADS`` wins. A rank that the launcher bound uses its cores; unbound ranks share their host's.
    """
    neighbours = world.ranks_on_this_host()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        threads = int(asked)
    else:
        allowed = len(os.sched_getaffinity(0))
        is_bound = allowed < (os.cpu_count() or 1)
        threads = allowed if is_bound else max(1, allowed // neighbours)
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
