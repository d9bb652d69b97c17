"""Run under mpirun: prints, as JSON, the number of threads that each rank chose, and the number that worked in torch and in
each backend.

With ``unset``, the launcher's OMP_NUM_THREADS is dropped, so that the number of this rank's cores decides.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

if "unset" in sys.argv:
    os.environ.pop("OMP_NUM_THREADS", None)  # before the OpenMP runtime reads it
os.environ["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"  # otherwise numba writes terminal codes after the JSON

import numba
import numpy as np
import torch

from hpcgnn import kernels
from hpcgnn.world import MpiWorld
from hpcgnn.world.devices import use_threads

ENOUGH_SECONDS = 0.2  # of CPU time of all threads together
TRIES = 4  # if other programs use the cores, a thread may come too late for its share


def cpu_seconds() -> dict[str, float]:
    """The CPU time of each thread of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def most_working_threads(work: Callable[[], object], waiting: tuple[str, ...] = ()) -> int:
    """The largest number in several tries, which end when it reaches the chosen number."""
    work()  # compiles the code, and starts the threads
    most = 0
    for _ in range(TRIES):
        most = max(most, working_threads(work, waiting))
        if most >= torch.get_num_threads():
            break
    return most


def working_threads(work: Callable[[], object], waiting: tuple[str, ...]) -> int:
    """The number of threads that take part in ``work``, without those that are known to be ``waiting`` for its end."""
    before = cpu_seconds()
    while True:
        work()
        now = cpu_seconds()
        spent = {thread: now[thread] - before.get(thread, 0) for thread in now.keys() - set(waiting)}
        if sum(spent.values()) > ENOUGH_SECONDS:
            return sum(seconds > 0.3 * ENOUGH_SECONDS / torch.get_num_threads() for seconds in spent.values())


def jit_waits_in() -> tuple[str, ...]:
    """The main thread, if it only waits for the others to finish; on a busy machine this takes CPU time as well."""
    return (str(os.getpid()),) if numba.threading_layer() == "workqueue" and torch.get_num_threads() > 1 else ()


def main() -> None:
    world = MpiWorld(timeout_seconds=120)
    threads = use_threads(world)
    rng = np.random.default_rng(0)
    rows, entries = 20_000, 400_000
    indptr = np.searchsorted(np.sort(rng.integers(0, rows, entries)), np.arange(rows + 1))
    csr = kernels.Csr(indptr, rng.integers(0, rows, entries), rows)
    x = torch.ones(rows, 64)
    out = torch.empty_like(x)

    def spmm(backend: str) -> Callable[[], object]:
        return lambda: kernels.spmm(csr, x, out=out, accumulate=False, backend=backend)

    jit = spmm("jit")
    jit()  # numba chooses its threading layer now
    mine = {
        "cores": len(os.sched_getaffinity(0)),
        "chosen": threads,
        "torch": most_working_threads(lambda: torch.add(x, x, out=out)),
        "native": most_working_threads(spmm("native")),
        "jit": most_working_threads(jit, jit_waits_in()),
    }
    found = world.allgather(np.array(list(mine.values())))
    if world.rank == 0:
        print(json.dumps([dict(zip(mine, map(int, row), strict=True)) for row in found]))


main()
