"""Ranks that are threads of one process, for what reduces a few numbers and needs many ranks in a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


class ThreadWorld:
    """The collectives of :class:`hpcgnn.comm.World` that policies use."""

    def __init__(self, rank: int, size: int, everyones: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._everyones, self._barrier = rank, size, everyones, barrier

    def allgather(self, array: np.ndarray) -> np.ndarray:
        self._everyones[self.rank] = np.array(array)
        self._barrier.wait()
        found = np.stack(self._everyones)
        self._barrier.wait()
        return found

    def broadcast(self, value: Any, root: int = 0, what: str = "") -> Any:
        if self.rank == root:
            self._everyones[root] = value
        self._barrier.wait()
        found = self._everyones[root]
        self._barrier.wait()
        return found

    def allreduce(self, array: np.ndarray, op: str = "sum", what: str = "") -> np.ndarray:
        return getattr(self.allgather(array), op)(0)


def on_ranks(size: int, program: Callable[[ThreadWorld], Any]) -> list[Any]:
    """What ``program`` returns on each rank."""
    everyones, barrier = [None] * size, threading.Barrier(size, timeout=60)

    def run(rank: int) -> Any:
        try:
            return program(ThreadWorld(rank, size, everyones, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
