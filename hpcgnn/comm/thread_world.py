"""Ranks that are threads of one process, for rehearsals on tiny graphs: no MPI, and no rank that is left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hpcgnn.comm.world import Pending, World

T = TypeVar("T")
_LONGEST_SECONDS = 60.0


class ThreadWorld(World):
    """A :class:`World` whose ranks meet at a barrier in each collective, and whose messages have come when they start."""

    def __init__(self, rank: int, size: int, everyones: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.timeout_seconds = rank, size, _LONGEST_SECONDS
        self._everyones, self._barrier = everyones, barrier

    def _shared(self, mine: Any, use: Callable[[list[Any]], T]) -> T:
        """What ``use`` makes of everyone's contributions, which stay as they are meanwhile."""
        self._everyones[self.rank] = mine
        self._barrier.wait()
        found = use(self._everyones)
        self._barrier.wait()
        return found

    def test(self, pending: Pending) -> bool:
        """As :meth:`World.test`: all that has started is complete."""
        return True

    def watch(self, pending: Pending) -> None:
        """As :meth:`World.watch`: nothing is left to be done."""

    def wait(self, pending: Pending) -> None:
        """As :meth:`World.wait`: nothing is left to wait for."""

    def start_allreduce(self, array: np.ndarray, result: np.ndarray, op: str = "sum", what: str = "") -> Pending:
        """As :meth:`World.start_allreduce`, at once."""
        result[...] = self._shared(array, lambda all_: getattr(np.stack(all_), op)(0))
        return _done(what, array, result)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """As :meth:`World.allgather`."""
        return self._shared(array, np.stack)

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """As :meth:`World.broadcast`, of the very object."""
        return self._shared(value, lambda all_: all_[root])

    def alltoallv(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`World.alltoallv`."""
        pieces = np.split(np.ascontiguousarray(rows), np.cumsum(counts)[:-1])
        received = self._shared(pieces, lambda all_: [np.array(theirs[self.rank]) for theirs in all_])
        return np.concatenate(received), np.array([len(piece) for piece in received], np.int64)

    def start_alltoallv(
        self,
        send: np.ndarray,
        send_rows: np.ndarray,
        recv: np.ndarray,
        recv_rows: np.ndarray,
        what: str,
        neighbours: Any = None,
    ) -> Pending:
        """As :meth:`World.start_alltoallv`, at once."""
        recv[...] = self.alltoallv(send, send_rows)[0]
        return _done(what, send, recv)


def on_threads(size: int, program: Callable[[ThreadWorld], T]) -> list[T]:
    """What ``program`` returns on each of ``size`` ranks. The first error of any rank ends all of them, and is raised."""
    everyones, barrier = [None] * size, threading.Barrier(size, timeout=_LONGEST_SECONDS)
    errors: list[BaseException] = []

    def run(rank: int) -> T | None:
        try:
            return program(ThreadWorld(rank, size, everyones, barrier))
        except threading.BrokenBarrierError:
            return None  # another rank's error, or one that waits for a rank that has ended
        except BaseException as error:
            errors.append(error)
            barrier.abort()
            return None

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(run, range(size)))
    if errors:
        raise errors[0]
    if barrier.broken:
        raise TimeoutError("the ranks of a rehearsal did not take part in the same collectives")
    return results  # type: ignore[return-value]


def _done(what: str, *buffers: Any) -> Pending:
    return Pending(None, what, buffers, time.perf_counter(), seconds=1e-9)
