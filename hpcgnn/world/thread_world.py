"""Ranks that are threads of one process, for tests and for rehearsals on tiny graphs: without MPI, and an error of one rank ends
all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hpcgnn.base.byte_sink import ByteSink, LocalFile
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.exchange_queue import ExchangeQueue
from hpcgnn.world.placement import Placement, block_on_host
from hpcgnn.world.world import World

T = TypeVar("T")
_LONGEST_SECONDS = 60.0


class Meeting:
    """The meeting point of a job's threads, to which each brings a value for the others."""

    def __init__(self, size: int, timeout_seconds: float) -> None:
        self.size, self.timeout_seconds = size, timeout_seconds
        self.barrier = threading.Barrier(size, timeout=timeout_seconds)
        self.brought: list[Any] = [None] * size
        self.parts: list[Meeting] = []  # meetings of the ranks of one node each

    def abort(self) -> None:
        """End the job: threads that wait here, or in a part, get BrokenBarrierError."""
        self.barrier.abort()
        for part in self.parts:
            part.abort()


class ThreadMemory:
    """:class:`hpcgnn.world.world.SharedMemory` among threads."""

    def __init__(self, values: np.ndarray, meeting: Meeting) -> None:
        self.values, self._meeting = values, meeting

    def meet(self) -> None:
        self._meeting.barrier.wait()

    def free(self) -> None:
        """Do nothing: the memory is freed with the last reference to it."""


class ThreadWorld(World):
    """:class:`hpcgnn.world.world.World` whose ranks meet in each collective, which is therefore complete as soon as it starts."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.size, meeting.timeout_seconds)
        self._meeting = meeting
        self._queue: ExchangeQueue | None = None
        self._node: ThreadWorld | None = None

    def _shared(self, mine: Any, use: Callable[[list[Any]], T]) -> T:
        """The result of ``use`` on the values that all ranks bring; no rank changes its value before all have used it."""
        meeting = self._meeting
        meeting.brought[self.rank] = mine
        meeting.barrier.wait()
        found = use(meeting.brought)
        meeting.barrier.wait()
        return found

    @property
    def library(self) -> str:
        return f"{self.size} threads of one process"

    # -- waiting: every started collective is complete ----------------------------------------------------------------

    def wait(self, pending: Pending) -> None:
        while not pending.test():  # an exchange in the queue starts in its test
            time.sleep(0)

    # -- collectives --------------------------------------------------------------------------------------------------

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        typed(result)[...] = self._shared(typed(mine), lambda all_: getattr(np.stack(all_), op)(0))
        return Pending.done(what)

    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        below = self._shared(typed(mine), lambda all_: np.stack(all_)[: self.rank].sum(0, dtype=mine.dtype))
        typed(result)[...] = below
        return Pending.done(what)

    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        result.on_host().reshape(-1)[...] = self._shared(mine.on_host(), lambda all_: np.stack(all_).reshape(-1))
        return Pending.done(what)

    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        result.on_host()[...] = self._shared(mine.on_host(), lambda all_: np.stack([each[self.rank] for each in all_]))
        return Pending.done(what)

    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        values.on_host()[...] = self._shared(values.on_host(), lambda all_: all_[root].copy())
        return Pending.done(what)

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        rows, begins = send.buffer.on_host(), send.begins
        pieces = [rows[begin : begin + count] for begin, count in zip(begins, send.counts, strict=True)]
        theirs = self._shared(pieces, lambda all_: [each[self.rank].copy() for each in all_])
        if [len(piece) for piece in theirs] != list(received.counts):
            raise ValueError(f"{what}: rank {self.rank} expects {list(received.counts)} rows of the ranks")
        for begin, piece in zip(received.begins, theirs, strict=True):
            received.buffer.on_host()[begin : begin + len(piece)] = piece
        return Pending.done(what)

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        return Neighbours(None, np.flatnonzero(sources), np.flatnonzero(destinations))

    def exchange_queue(self) -> ExchangeQueue:
        if self._queue is None:
            self._queue = ExchangeQueue(self.start_alltoallv)
        return self._queue

    # -- where ranks are ----------------------------------------------------------------------------------------------

    def ranks_on_my_cores(self) -> int:
        return self.size

    def hosts(self) -> np.ndarray:
        return np.zeros(self.size, np.int64)

    def placement(self) -> Placement:
        return Placement.of(np.array([block_on_host(rank) for rank in range(self.size)]))

    def on_my_node(self) -> ThreadWorld:
        if self._node is None:
            mates = self.placement().ranks_of(int(self.placement().node_of[self.rank]))
            lowest = int(mates[0])
            meeting = Meeting(mates.size, self.timeout_seconds) if self.rank == lowest else None
            self._node = ThreadWorld(self.rank - lowest, self._shared(meeting, lambda all_: all_[lowest]))
            self._meeting.parts.append(self._node._meeting)
        return self._node

    def share(self, num_bytes: int) -> ThreadMemory:
        mine = np.zeros(num_bytes, np.uint8) if self.rank == 0 else None
        return ThreadMemory(self._shared(mine, lambda all_: all_[0]), self._meeting)

    def open_shared(self, path: str) -> ByteSink:
        return LocalFile(path)


def on_threads(size: int, program: Callable[[ThreadWorld], T], *, timeout_seconds: float = _LONGEST_SECONDS) -> list[T]:
    """Run ``program`` on ``size`` ranks, and return the result of each. The first error of any rank ends all, and is raised.

    Raises:
        TimeoutError: where a rank waits for the others in a collective for longer than ``timeout_seconds``.
    """
    meeting = Meeting(size, timeout_seconds)
    errors: list[BaseException] = []

    def run(rank: int) -> T | None:
        try:
            return program(ThreadWorld(rank, meeting))
        except threading.BrokenBarrierError:
            return None  # another rank has raised an error, or some rank waits for one that has ended
        except BaseException as error:
            errors.append(error)
            meeting.abort()
            return None

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(run, range(size)))
    if errors:
        raise errors[0]
    if meeting.barrier.broken:
        raise TimeoutError("the ranks of a rehearsal did not take part in the same collectives")
    return results  # type: ignore[return-value]


def one_rank() -> ThreadWorld:
    """A job of one rank, in the calling thread."""
    return ThreadWorld(0, Meeting(1, _LONGEST_SECONDS))


def typed(buffer: Buffer) -> np.ndarray:
    """(elements,) view of the buffer's memory in the type that it holds."""
    return buffer.on_host().reshape(-1).view(buffer.dtype)
