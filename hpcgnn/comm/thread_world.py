"""Ranks that are threads of one process, for tests and for rehearsals on tiny graphs: no MPI, and no rank left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hpcgnn.byte_sink import ByteSink, LocalFile
from hpcgnn.comm.buffer import Buffer
from hpcgnn.comm.channel import Channel
from hpcgnn.comm.collectives import Collectives
from hpcgnn.comm.pending import Pending
from hpcgnn.comm.placement import Placement, block_on_host
from hpcgnn.comm.segments import Neighbours, Segments
from hpcgnn.comm.world import MpiHandle

T = TypeVar("T")
_LONGEST_SECONDS = 60.0


class Meeting:
    """Where the threads of a job meet, each with something for the others."""

    def __init__(self, size: int, timeout_seconds: float) -> None:
        self.size, self.timeout_seconds = size, timeout_seconds
        self.barrier = threading.Barrier(size, timeout=timeout_seconds)
        self.brought: list[Any] = [None] * size
        self.parts: list[Meeting] = []  # of the ranks of a node

    def abort(self) -> None:
        """Nobody comes any more: those who wait leave."""
        self.barrier.abort()
        for part in self.parts:
            part.abort()


class ThreadMemory:
    """:class:`hpcgnn.comm.world.SharedMemory` of threads."""

    def __init__(self, values: np.ndarray, meeting: Meeting) -> None:
        self.values, self._meeting = values, meeting

    def meet(self) -> None:
        """At the barrier of all meetings."""
        self._meeting.barrier.wait()

    def free(self) -> None:
        """Where nobody holds it."""


class ThreadWorld(Collectives):
    """:class:`hpcgnn.comm.world.World` whose ranks meet in each collective, and whose messages have come when they start."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.size, meeting.timeout_seconds)
        self._meeting = meeting
        self._channel: Channel | None = None
        self._node: ThreadWorld | None = None

    def _shared(self, mine: Any, use: Callable[[list[Any]], T]) -> T:
        """What ``use`` makes of what all have brought, which stays as it is meanwhile."""
        meeting = self._meeting
        meeting.brought[self.rank] = mine
        meeting.barrier.wait()
        found = use(meeting.brought)
        meeting.barrier.wait()
        return found

    @property
    def library(self) -> str:
        """None of MPI's."""
        return f"{self.size} threads of one process"

    @property
    def mpi_handle(self) -> MpiHandle | None:
        """There is none."""
        return None

    # -- waiting: all that has started is complete --------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        """See :meth:`hpcgnn.comm.world.World.test`, and so on."""
        return pending.test()

    def watch(self, pending: Pending) -> None:
        """Nothing is left to be done."""

    def wait(self, pending: Pending) -> None:
        """What has started is complete; what starts in its turn does so here."""
        while not pending.test():
            time.sleep(0)

    # -- what starts, and ends ----------------------------------------------------------------------------------------

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        """In the order of ranks."""
        _typed(result)[...] = self._shared(_typed(mine), lambda all_: getattr(np.stack(all_), op)(0))
        return Pending.done(what)

    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """In the order of ranks."""
        below = self._shared(_typed(mine), lambda all_: np.stack(all_)[: self.rank].sum(0, dtype=mine.dtype))
        _typed(result)[...] = below
        return Pending.done(what)

    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Copy everyone's."""
        gathered = self._shared(mine.on_host(), lambda all_: np.stack(all_).reshape(-1))
        result.on_host().reshape(-1)[...] = gathered
        return Pending.done(what)

    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Copy this rank's row of everyone's."""
        result.on_host()[...] = self._shared(mine.on_host(), lambda all_: np.stack([each[self.rank] for each in all_]))
        return Pending.done(what)

    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        """Copy the root's."""
        values.on_host()[...] = self._shared(values.on_host(), lambda all_: all_[root].copy())
        return Pending.done(what)

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        """Copy this rank's pieces of everyone's."""
        rows, begins = send.buffer.on_host(), send.begins()
        pieces = [rows[begin : begin + count] for begin, count in zip(begins, send.counts, strict=True)]
        theirs = self._shared(pieces, lambda all_: [each[self.rank].copy() for each in all_])
        if [len(piece) for piece in theirs] != list(received.counts):
            raise ValueError(f"{what}: rank {self.rank} expects {list(received.counts)} rows of the ranks")
        for begin, piece in zip(received.begins(), theirs, strict=True):
            received.buffer.on_host()[begin : begin + len(piece)] = piece
        return Pending.done(what)

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        """Nothing has to be made: every rank sees every other."""
        return Neighbours(None, np.flatnonzero(sources), np.flatnonzero(destinations))

    def free(self, neighbours: Neighbours) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing either."""

    def channel(self) -> Channel:
        """The same meetings."""
        if self._channel is None:
            self._channel = Channel(self.start_alltoallv)
        return self._channel

    def takes_memory_of(self, kind: str) -> bool:
        """Threads read memory of the host."""
        return False

    # -- where ranks are ----------------------------------------------------------------------------------------------

    def ranks_on_my_cores(self) -> int:
        """All of them."""
        return self.size

    def nodes(self) -> np.ndarray:
        """All on one."""
        return np.zeros(self.size, np.int64)

    def placement(self) -> Placement:
        """All on one, unless the environment divides them."""
        return Placement.of(np.array([block_on_host(rank) for rank in range(self.size)]))

    def on_my_node(self) -> ThreadWorld:
        """With meetings of their own, which the lowest rank makes."""
        if self._node is None:
            mates = self.placement().ranks_of(int(self.placement().node_of[self.rank]))
            lowest = int(mates[0])
            meeting = Meeting(mates.size, self.timeout_seconds) if self.rank == lowest else None
            self._node = ThreadWorld(self.rank - lowest, self._shared(meeting, lambda all_: all_[lowest]))
            self._meeting.parts.append(self._node._meeting)
        return self._node

    def share(self, num_bytes: int) -> ThreadMemory:
        """An array that rank 0 makes."""
        mine = np.zeros(num_bytes, np.uint8) if self.rank == 0 else None
        return ThreadMemory(self._shared(mine, lambda all_: all_[0]), self._meeting)

    def open_shared(self, path: str) -> ByteSink:
        """Each rank has a descriptor of its own."""
        return LocalFile(path)


def on_threads(size: int, program: Callable[[ThreadWorld], T], *, timeout_seconds: float = _LONGEST_SECONDS) -> list[T]:
    """What ``program`` returns on each of ``size`` ranks. The first error of any rank ends all of them, and is raised.

    Raises:
        TimeoutError: where a rank waits for the others in a collective for longer than ``timeout_seconds``.
    """
    meeting = Meeting(size, timeout_seconds)
    errors: list[BaseException] = []

    def run(rank: int) -> T | None:
        try:
            return program(ThreadWorld(rank, meeting))
        except threading.BrokenBarrierError:
            return None  # another rank's error, or one that waits for a rank that has ended
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


def _typed(buffer: Buffer) -> np.ndarray:
    """(elements,) the buffer's memory as what it holds."""
    return buffer.on_host().reshape(-1).view(buffer.dtype)
