"""All use of MPI in hpcgnn; the only module that imports mpi4py.

Every wait tests with back-off: ranks that share a core do not starve each other, Python's signal handlers get to run, and if a
peer stops answering, the wait ends with an error that names the collective it waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.base.byte_sink import ByteSink, LocalFile
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import job, waiting
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.exchange_queue import ExchangeQueue
from hpcgnn.world.job import PROGRESS
from hpcgnn.world.placement import Placement, block_on_host
from hpcgnn.world.world import DEFAULT_TIMEOUT_SECONDS, MpiHandle, World, check_alike, check_not_alone

if TYPE_CHECKING:
    from mpi4py import MPI


_MOST_BYTES = 1 << 30  # written by one call: MPI-IO's counts are C ints


@dataclass
class MpiFile:
    """A file that all ranks write by plain MPI-IO, each its own bytes, so that no parallel HDF5 is needed; see
    :class:`hpcgnn.base.byte_sink.ByteSink`.

    Open MPI 4 reports success even if the system has written a part of the bytes only, or none because the disk is full. So
    each write compares the number of bytes that MPI reports with the number asked for, and writes the rest without MPI, which
    either succeeds or raises the reason.

    status: an ``MPI.Status`` of mpi4py, which holds the number of bytes written. blocking: makes the context of calls that wait
    for other ranks.
    """

    path: str
    handle: Any
    status: Any
    blocking: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _MOST_BYTES):
            piece, written = data[start : start + _MOST_BYTES], 0
            with contextlib.suppress(RuntimeError):  # mpi4py's MPI.Exception
                self.handle.Write_at(byte_offset + start, piece, self.status)
                written = max(self.status.count, 0)
            if written < piece.size:
                with LocalFile(self.path) as file:
                    file.write(byte_offset + start + written, piece[written:])

    def close(self) -> None:
        try:
            with self.blocking():
                self.handle.Close()
        except RuntimeError as error:
            raise OSError(str(error)) from error


_EAGER_MEETING_SECONDS = 2e-4  # spin only briefly: ranks that share cores should yield to those still computing
_CACHE_LINE_BYTES = 64


class SharedWindow:
    """:class:`hpcgnn.world.world.SharedMemory` of a communicator whose ranks are on one node. Collective when made. Ranks meet
    before they free it, as others may still read.

    Ranks meet through counters in the memory itself, one cache line for each rank: a rank that arrives writes how often it has
    arrived, and reads the counters of the others. If ranks share cores, each must be scheduled once for this; a collective of MPI
    needs several turns of each.

    world: the ranks of the node. comm, mpi: their communicator, and mpi4py's module. num_bytes: size of the memory.
    """

    def __init__(self, world: MpiWorld, comm: Any, mpi: Any, num_bytes: int) -> None:
        self._world = world
        header = world.size * _CACHE_LINE_BYTES
        self._window = mpi.Win.Allocate_shared(header + num_bytes if world.rank == 0 else 0, 1, comm=comm)
        memory, _ = self._window.Shared_query(0)
        self.values = np.frombuffer(memory, np.uint8, count=num_bytes, offset=header)
        numbers = np.frombuffer(memory, np.int64, count=header // 8).reshape(world.size, -1)[:, 0]
        self._arrivals, self._mine, self._meetings = numbers, numbers[world.rank : world.rank + 1], 0
        self._mine[0] = 0
        self._window.Lock_all(mpi.MODE_NOCHECK)
        world.allreduce(np.zeros(1), what="the memory of a node")  # a rank that comes early must not be overwritten

    def meet(self) -> None:
        self._fence()
        self._meetings += 1
        self._mine[0] = self._meetings
        started, seconds = time.perf_counter(), self._world.timeout_seconds
        say_at = max(waiting.SAY_SECONDS, seconds * waiting.SHARE_OF_TIMEOUT)
        while (self._arrivals < self._meetings).any():
            waited = time.perf_counter() - started
            if waited < _EAGER_MEETING_SECONDS:
                os.sched_yield()
            else:
                self._world.poke()
                time.sleep(_PAUSE_SECONDS)
            if waited > min(say_at, seconds):
                self._tell_of_late_ranks(waited)
                say_at = math.inf
        self._fence()

    def _tell_of_late_ranks(self, waited: float) -> None:
        """Say which ranks of the node have not come, and raise StalledError after the timeout."""
        world, late = self._world, np.flatnonzero(self._arrivals < self._meetings).tolist()
        who = f"rank {world.rank} of node {platform.node()}"
        if late and waited > world.timeout_seconds:
            raise waiting.stalled(who, world.timeout_seconds, f"its {waiting.named(late)}")
        if late and world.rank == int(np.argmax(self._arrivals >= self._meetings)):  # the lowest that has come
            waiting.say(job.launcher_rank(), f"{who} has waited for {waited:.0f} s for its {waiting.named(late)}")

    def free(self) -> None:
        if not self._window:  # it was freed before
            return
        self.values = self._arrivals = self._mine = np.zeros(0, np.uint8)
        self._window.Unlock_all()
        self._window.Free()

    def _fence(self) -> None:
        """Make this rank's earlier writes visible to others, and theirs to this rank; x86 keeps that order without a fence."""
        if platform.machine() not in ("x86_64", "AMD64"):
            PROGRESS.take_over()
            self._window.Sync()
            self._world.watch_on()


# Large messages move only while MPI is called, so the pauses between calls must be short compared with the copy of a fragment.
_EAGER_SECONDS = 0.01
_NODES = "the ranks of each node to find each other"
_THREAD = threading.local()  # its attribute takes_part exists in threads that have waited before
_PAUSE_SECONDS = 5e-5


def _mpi() -> Any:
    """Import and initialise MPI, at ``MPI_THREAD_SERIALIZED``: autograd may run backward on a thread of its own."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise HpcgnnError(
            f"no usable MPI library was found ({error}): install a system MPI, or `pip install mpich` into this environment"
        ) from error
    return MPI


_PAIRS_TAG = 1  # one tag for all messages between two ranks, as these arrive in the order in which they were sent


def _free(handle: Any) -> None:
    if handle:  # it was not freed before
        handle.Free()


class MpiWorld(World):
    """:class:`hpcgnn.world.world.World` over a communicator, ``MPI_COMM_WORLD`` if none is given. Initialises MPI.

    Raises:
        HpcgnnError: for a timeout of 0 s or less, without a usable MPI library, and where the launcher belongs to another MPI.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        if not timeout_seconds > 0:
            raise HpcgnnError(f"timeout must be a number of seconds above 0, not {timeout_seconds}", agreed=True)
        self._mpi = _mpi()
        waiting.receive_all_at_exit()
        self._communicator = self._mpi.COMM_WORLD if comm is None else comm
        if comm is None:
            check_not_alone(self._communicator.size, self.library)
        super().__init__(self._communicator.rank, self._communicator.size, timeout_seconds)
        self._row_types: dict[int, Any] = {}
        self._watched: list[Pending] = []
        self._queue: ExchangeQueue | None = None  # over a communicator of its own
        self._takes: dict[str, bool] = {}
        self._node: MpiWorld | None = None
        self._apart: MpiWorld | None = None
        # Frees MPI's objects of this world, the newest first, in one order on all ranks.
        self._made = contextlib.ExitStack()

    @property
    def _comm(self) -> Any:
        """The communicator, for a call from this thread; the progress thread does not call MPI from now on."""
        PROGRESS.take_over()
        return self._communicator

    @property
    def library(self) -> str:
        return self._mpi.Get_library_version().splitlines()[0].strip().rstrip("\0")

    @property
    def mpi_handle(self) -> MpiHandle:
        return MpiHandle(self._mpi._handleof(self._comm), self._mpi._sizeof(self._mpi.Comm))

    # -- waiting ------------------------------------------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        PROGRESS.take_over()
        is_complete = self._tested(pending)
        self.watch_on()
        return is_complete

    def _tested(self, pending: Pending) -> bool:
        try:
            return pending.test()
        except self._mpi.Exception as error:
            raise self._failed(pending.what, error) from error

    def _failed(self, what: str, error: Exception) -> HpcgnnError:
        """The error for an exception that MPI has raised in ``what``."""
        problem = " ".join(job.mpi_problem(error).split())  # MPICH's descriptions have several lines
        return HpcgnnError(
            f"MPI failed on rank {self.rank} of {self.size} in {what}: {problem} (do all ranks read the same files, and run "
            "the same version?)"
        )

    @contextlib.contextmanager
    def _starting(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._mpi.Exception as error:
            raise self._failed(what, error) from error

    @contextlib.contextmanager
    def _blocking(self, what: str) -> Iterator[None]:
        """Context of calls that have no nonblocking form: as :meth:`_starting`, and limited to ``timeout_seconds``."""
        with self._starting(what), self._limited(what):
            yield

    def _limited(self, what: str) -> contextlib.AbstractContextManager[None]:
        error = waiting.stalled(f"rank {self.rank} of {self.size}", self.timeout_seconds, what)
        return waiting.limited(self.timeout_seconds, error, self._mpi.COMM_WORLD.rank, what)

    def watch(self, pending: Pending) -> None:
        self._watched.append(pending)
        self.watch_on()

    def watch_on(self) -> None:
        """Give MPI to the progress thread until this rank calls it again."""
        watched = [pending for pending in self._watched if not pending.seconds]
        self._watched[:] = watched  # this world and that of its node share one list
        if watched and self.size > 1 and self._mpi.Query_thread() >= self._mpi.THREAD_SERIALIZED:
            # all() gets a list, so that each one is tested: the test notes when it was complete
            PROGRESS.watch(lambda: all([pending.test() for pending in watched]))  # noqa: C419

    def wait(self, pending: Pending) -> None:
        started, slept = time.perf_counter(), False
        if not hasattr(_THREAD, "takes_part"):
            job.taking_part.add(threading.current_thread())
            _THREAD.takes_part = True
        PROGRESS.take_over()
        while not self._tested(pending):
            if self._queue is not None:  # other messages in flight make progress, too
                with self._starting(pending.what):
                    self._queue.advance()
            waited = time.perf_counter() - started
            if waited < _EAGER_SECONDS:
                os.sched_yield()
            else:
                time.sleep(_PAUSE_SECONDS)
                slept = True
                waiting.ROLL_CALL.during(self._mpi, self._communicator, waited, pending.what, self.timeout_seconds)
            if waited > self.timeout_seconds:
                raise waiting.stalled(f"rank {self.rank} of {self.size}", self.timeout_seconds, pending.what)
        if slept:
            waiting.ROLL_CALL.over(time.perf_counter() - started)
        self.watch_on()

    # -- nonblocking collectives --------------------------------------------------------------------------------------

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        if self.size == 1 and mine.device == result.device == "cpu":
            ctypes.memmove(result.address, mine.address, mine.num_bytes)
            return Pending.done(what)
        mpi_op = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[op]
        with self._starting(what):
            request = self._comm.Iallreduce(self._typed(mine), self._typed(result), op=mpi_op)
        return Pending.started(request, what, mine, result)

    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        # MPI leaves rank 0's result undefined, so it gets other memory there.
        kept = result if self.rank else Buffer.of(result.on_host().copy())
        spec = [self._memory(kept), self._type(result)]
        with self._starting(what):
            return Pending.started(self._comm.Iexscan(self._typed(mine), spec, op=self._mpi.SUM), what, mine, kept)

    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        with self._starting(what):
            return Pending.started(self._comm.Iallgather(self._bytes(mine), self._bytes(result)), what, mine, result)

    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        with self._starting(what):
            return Pending.started(self._comm.Ialltoall(self._bytes(mine), self._bytes(result)), what, mine, result)

    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        with self._starting(what):
            return Pending.started(self._comm.Ibcast(self._bytes(values), root=root), what, values)

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        return self._moved(self._comm, send, received, what, neighbours)  # self._comm takes MPI back from the thread

    def _moved(
        self, comm: Any, send: Segments, received: Segments, what: str, neighbours: Neighbours | None
    ) -> Pending:
        if send.buffer.device != "cpu" and self.library.startswith("Open MPI"):
            return self._moved_by_pairs(comm, send, received, what)
        start = comm.Ialltoallv if neighbours is None else neighbours.handle.Ineighbor_alltoallv
        if send.for_mpi is None or received.for_mpi is None or send.among is not neighbours:
            send.for_mpi = self._for_mpi(send, None if neighbours is None else neighbours.destinations)
            received.for_mpi = self._for_mpi(received, None if neighbours is None else neighbours.sources)
            send.among = neighbours
        try:
            return Pending.started(start(send.for_mpi, received.for_mpi), what, send, received)
        except self._mpi.Exception as error:
            raise self._failed(what, error) from error

    def _for_mpi(self, segments: Segments, ranks: np.ndarray | None) -> list[Any]:
        """The segments, or those of ``ranks``, as mpi4py takes them."""
        where = segments.counts, segments.begins
        where = where if ranks is None else (where[0][ranks], where[1][ranks])
        return [self._memory(segments.buffer), where, self._row_type(segments.buffer.row_bytes)]

    def _moved_by_pairs(self, comm: Any, send: Segments, received: Segments, what: str) -> Pending:
        """``Isend`` and ``Irecv``: Open MPI does not promise to take a device's memory in nonblocking collectives."""
        row_type, requests = self._row_type(send.buffer.row_bytes), []
        with self._starting(what):
            for segments, start in ((received, comm.Irecv), (send, comm.Isend)):
                memory, begins = segments.buffer, segments.begins
                for peer in np.flatnonzero(segments.counts).tolist():
                    count, address = int(segments.counts[peer]), memory.address + int(begins[peer]) * memory.row_bytes
                    rows = self._mpi.buffer.fromaddress(address, count * memory.row_bytes)
                    requests.append(start([rows, count, row_type], peer, _PAIRS_TAG))
        return Pending.started(SimpleNamespace(Test=partial(self._mpi.Request.Testall, requests)), what, send, received)

    def exchange_queue(self) -> ExchangeQueue:
        if self._queue is None:
            with self._blocking("a communicator for messages in flight"):
                apart = self._comm.Dup()
            self._queue = ExchangeQueue(lambda *transfer: self._moved(apart, *transfer))
            self._made.callback(apart.Free)
        return self._queue

    def apart(self) -> MpiWorld:
        if self._apart is None:
            with self._blocking("a communicator for sums of gradients"):
                comm = self._comm.Dup()
            self._apart = self._over(comm)
        return self._apart

    def takes_memory_of(self, kind: str) -> bool:
        if kind not in self._takes:
            from hpcgnn.world.transport import says_yes  # imported here because it needs torch

            self._takes[kind] = says_yes(self._mpi, kind)
        return self._takes[kind]

    # -- buffers as mpi4py takes them ---------------------------------------------------------------------------------

    def _memory(self, buffer: Buffer) -> Any:
        kind = buffer.device.split(":")[0]
        if kind != "cpu" and not self.takes_memory_of(kind):
            raise HpcgnnError(f"this MPI library takes memory of the host, not of {buffer.device}")
        return self._mpi.buffer.fromaddress(buffer.address if buffer.num_bytes else 0, buffer.num_bytes)

    def _bytes(self, buffer: Buffer) -> list[Any]:
        return [self._memory(buffer), self._mpi.BYTE]

    def _typed(self, buffer: Buffer) -> list[Any]:
        return [self._memory(buffer), self._type(buffer)]

    def _type(self, buffer: Buffer) -> Any:
        return self._mpi.Datatype.fromcode(np.dtype(buffer.dtype).char)

    def _row_type(self, row_bytes: int) -> Any:
        if row_bytes not in self._row_types:
            self._row_types[row_bytes] = self._mpi.BYTE.Create_contiguous(row_bytes).Commit()
            self._made.callback(self._row_types[row_bytes].Free)
        return self._row_types[row_bytes]

    # -- nodes and files ----------------------------------------------------------------------------------------------

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        ranks = (np.flatnonzero(sources), np.flatnonzero(destinations))
        with self._blocking("a communicator of neighbours"):
            found = Neighbours(self._comm.Create_dist_graph_adjacent(*(each.tolist() for each in ranks)), *ranks)
        self._made.callback(_free, found.handle)
        return found

    def free(self, neighbours: Neighbours) -> None:
        PROGRESS.take_over()
        with self._blocking("the end of a communicator of neighbours"):
            _free(neighbours.handle)

    def ranks_on_my_cores(self) -> int:
        with self._blocking(_NODES):
            host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
            mine = sorted(os.sched_getaffinity(0))
            count = sum(cores == mine for cores in host.allgather(mine))
            host.Free()
        return count

    def hosts(self) -> np.ndarray:
        with self._blocking(_NODES):
            host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        lowest = MpiWorld(host, self.timeout_seconds).allreduce(np.array([self.rank]), "min", "the ranks of a node")
        with self._blocking(_NODES):
            host.Free()
        return self.allgather(lowest)[:, 0]

    def placement(self) -> Placement:
        lowest = self.on_my_node().allreduce(np.array([self.rank]), "min", "the ranks of a node")
        return Placement.of(self.allgather(lowest)[:, 0])

    def on_my_node(self) -> MpiWorld:
        if self._node is None:
            with self._blocking(_NODES):
                host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
                comm = host.Split(block_on_host(host.rank))
                host.Free()
            self._node = self._over(comm)
        return self._node

    def _over(self, comm: Any) -> MpiWorld:
        """A world of some of these ranks, which is closed with this one."""
        other = MpiWorld(comm, self.timeout_seconds)
        # Its waits give MPI back to the progress thread for this world's messages.
        other._watched = self._watched
        self._made.callback(comm.Free)
        self._made.callback(other.close)
        return other

    def share(self, num_bytes: int) -> SharedWindow:
        with self._blocking("the memory that ranks of a node share"):
            window = SharedWindow(self, self._comm, self._mpi, num_bytes)
        self._made.callback(window.free)
        return window

    def close(self) -> None:
        PROGRESS.take_over()
        with self._blocking("the release of MPI's objects"):
            self._made.close()
        self._node, self._apart, self._queue, self._row_types = None, None, None, {}

    def poke(self) -> None:
        """Let MPI make progress with the messages that this rank has sent, while the rank waits for something else."""
        PROGRESS.take_over()
        self._communicator.Iprobe()
        self.watch_on()

    def open_shared(self, path: str) -> ByteSink:
        if self.size == 1:
            return LocalFile(path)
        with self._blocking(f"opening {path} for writing"):
            handle = self._mpi.File.Open(self._comm, os.fsencode(path), self._mpi.MODE_WRONLY)
        return MpiFile(path, handle, self._mpi.Status(), lambda: self._limited(f"closing {path}"))


@cache
def whole_job() -> MpiWorld:
    """The world of ``MPI_COMM_WORLD``, for all callers that name no world, so that its communicators and datatypes are made once
    in a process; and from then on the end of the program on one rank ends all (:mod:`hpcgnn.world.job`). Collective."""
    world = check_alike(MpiWorld())
    if world.size > 1:
        job.end_all_at_error()
    return world
