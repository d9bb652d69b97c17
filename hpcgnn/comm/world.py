"""All the MPI that hpcgnn needs; the only module that imports mpi4py.

Two rules hold everywhere. Every wait goes through :meth:`World.wait`, which tests with back-off: ranks that share a core
do not starve each other, Python's signal handlers get to run, and a peer that stopped answering becomes an error that
names what was waited for. And a rank that finds a problem says so through :meth:`World.together` before the next
collective, because one rank that raises alone leaves the others hanging.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.comm.progress import Progress
from hpcgnn.errors import HpcgnnError, StalledError

if TYPE_CHECKING:
    from mpi4py import MPI

DEFAULT_TIMEOUT_SECONDS = 1800.0
# Large messages move only while MPI is called, so the pauses between calls must be short against a fragment's copy time.
_EAGER_SECONDS = 0.01
_PAUSE_SECONDS = 5e-5
_PRINTED_BEFORE_ABORT_SECONDS = 0.25  # MPICH's launcher drops what a rank printed just before it aborts
# Ranks come to what they wait for in vain as far apart as they compute, and so do their deadlines.
_LEAST_GRACE_SECONDS, _MOST_GRACE_SECONDS = 2.0, 60.0
MOST_ROWS = 2**31 - 1  # of one rank in one exchange: counts and displacements are C ints
_BROADCAST_BYTES = 1 << 30  # counts are C ints
_PROGRESS = Progress()  # one a process, as MPI and its rules for threads are


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


def launcher_rank() -> int:
    """This process's rank as the launcher tells it in the environment, without initialising MPI; 0 outside a launcher."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def is_parallel() -> bool:
    """Whether MPI runs in this process with more than one rank."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1


def abort_if_parallel(exit_code: int) -> None:
    """End every rank of the job at once when there is more than one and MPI runs; return otherwise."""
    if is_parallel():
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_PRINTED_BEFORE_ABORT_SECONDS)
        _PROGRESS.take_over()
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(exit_code)


@dataclass(eq=False)
class Pending:
    """A started collective: the MPI request and the buffers that must live until it ends.

    seconds: from the start until a test or wait found it complete; 0 before.
    """

    request: Any
    what: str
    buffers: tuple[Any, ...]
    started_at: float
    seconds: float = 0.0
    error: Exception | None = None

    def test(self) -> bool:
        """Give MPI a chance to make progress; true once this is complete. Raises what MPI has raised, each time."""
        if self.error is not None:  # MPI itself forgets it: a request that failed is none afterwards
            raise self.error
        if not self.seconds:
            try:
                complete = self.request.Test()
            except Exception as error:
                self.error = error
                raise
            if complete:
                self.seconds = time.perf_counter() - self.started_at
        return self.seconds > 0


@dataclass(frozen=True)
class Neighbours:
    """A communicator that knows who sends to whom. sources, destinations: (k,) ranks that send to this one, and get from it."""

    comm: Any
    sources: np.ndarray
    destinations: np.ndarray


class World:
    """A communicator with the few operations hpcgnn uses.

    Every public method but :meth:`test`, :attr:`rank` and :attr:`size` is collective: all ranks call it, in the same
    order, with arrays of the same shape unless stated otherwise.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._mpi = _mpi()
        self._communicator = self._mpi.COMM_WORLD if comm is None else comm
        self.rank: int = self._communicator.rank
        self.size: int = self._communicator.size
        self.timeout_seconds = timeout_seconds
        self._row_types: dict[int, Any] = {}
        self._watched: list[Pending] = []

    @property
    def _comm(self) -> Any:
        """The communicator, for a call from this thread: the progress thread leaves MPI alone from now on."""
        _PROGRESS.take_over()
        return self._communicator

    @property
    def library(self) -> str:
        """Name and version of the MPI library, one line. Not collective."""
        return self._mpi.Get_library_version().splitlines()[0].strip().rstrip("\0")

    @property
    def handle(self) -> int:
        """The communicator's C handle for ctypes: a pointer (OpenMPI) or an int (MPICH). Not collective."""
        return self._mpi._handleof(self._comm)

    @property
    def handle_bytes(self) -> int:
        """Size in bytes of ``MPI_Comm`` in this MPI library. Not collective."""
        return self._mpi._sizeof(self._mpi.Comm)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        """Give MPI a chance to make progress; true once ``pending`` is complete. Not collective."""
        _PROGRESS.take_over()
        is_complete = pending.test()
        self._watch_on()
        return is_complete

    def watch(self, pending: Pending) -> None:
        """Let a thread make progress with ``pending`` whenever this rank does not wait, until it is complete. Not collective.

        Its buffers live at least as long.
        """
        self._watched.append(pending)
        self._watch_on()

    def _watch_on(self) -> None:
        """Give MPI to the progress thread until this rank calls it again."""
        self._watched = watched = [pending for pending in self._watched if not pending.seconds]
        if watched and self.size > 1 and self._mpi.Query_thread() >= self._mpi.THREAD_SERIALIZED:
            # a list, so that each is tested, which is what tells when it was complete
            _PROGRESS.watch(lambda: all([pending.test() for pending in watched]))  # noqa: C419

    def wait(self, pending: Pending) -> None:
        """Wait until ``pending`` is complete, yielding the core; raise after ``timeout_seconds`` without an end."""
        started = time.perf_counter()
        _PROGRESS.take_over()
        while not pending.test():
            waited = time.perf_counter() - started
            if waited < _EAGER_SECONDS:
                os.sched_yield()
            else:
                time.sleep(_PAUSE_SECONDS)
            if waited > self.timeout_seconds:
                raise StalledError(
                    f"rank {self.rank} of {self.size} waited {self.timeout_seconds:.0f} s for {pending.what}: "
                    "a peer or a link has stopped (raise --timeout if the step can really take that long)",
                    grace_seconds=min(max(self.timeout_seconds, _LEAST_GRACE_SECONDS), _MOST_GRACE_SECONDS),
                )
        self._watch_on()

    def _start(self, request: Any, what: str, *buffers: Any) -> Pending:
        return Pending(request, what, buffers, time.perf_counter())

    # -- small collectives --------------------------------------------------------------------------------------------

    def allreduce(self, array: np.ndarray, op: str = "sum", what: str = "a reduction") -> np.ndarray:
        """Element-wise ``sum``, ``max`` or ``min`` over ranks, as a new array on every rank."""
        array = np.ascontiguousarray(array)
        result = np.empty_like(array)
        self.wait(self.start_allreduce(array, result, op, what))
        return result

    def start_allreduce(self, array: np.ndarray, result: np.ndarray, op: str = "sum", what: str = "") -> Pending:
        """Nonblocking :meth:`allreduce` from ``array`` into ``result``, which must differ."""
        mpi_op = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[op]
        return self._start(self._comm.Iallreduce(array, result, op=mpi_op), what, array, result)

    def exscan(self, array: np.ndarray) -> np.ndarray:
        """Element-wise sum over the ranks below this one (zeros on rank 0)."""
        array = np.ascontiguousarray(array)
        result = np.zeros_like(array)
        request = self._comm.Iexscan(array, result, op=self._mpi.SUM)
        self.wait(self._start(request, "a prefix sum", array, result))
        return result if self.rank else np.zeros_like(array)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """Stack every rank's equally shaped ``array``: result ``(size, *array.shape)``. O(size) memory on each rank."""
        array = np.ascontiguousarray(array)
        result = np.empty((self.size, *array.shape), dtype=array.dtype)
        self.wait(self._start(self._comm.Iallgather(array, result), "a gather of sizes", array, result))
        return result

    def broadcast_array(self, array: np.ndarray, root: int = 0, what: str = "a broadcast") -> np.ndarray:
        """Overwrite ``array`` (contiguous, same shape and dtype everywhere) with rank ``root``'s."""
        flat = array.reshape(-1)
        step = max(_BROADCAST_BYTES // array.itemsize, 1)
        for first in range(0, flat.size, step):
            piece = flat[first : first + step]
            self.wait(self._start(self._comm.Ibcast(piece, root=root), what, piece))
        return array

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """Rank ``root``'s picklable ``value`` on every rank; for the setup phase."""
        import pickle

        payload = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy() if self.rank == root else None
        length = np.array([0 if payload is None else payload.size], dtype=np.int64)
        self.broadcast_array(length, root, what)
        if payload is None:
            payload = np.empty(int(length[0]), dtype=np.uint8)
        return pickle.loads(self.broadcast_array(payload, root, what).tobytes())

    def ranks_on_my_cores(self) -> int:
        """How many ranks of this host may run on exactly the cores that this one may run on, itself included."""
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        mine = sorted(os.sched_getaffinity(0))
        count = sum(cores == mine for cores in host.allgather(mine))
        host.Free()
        return count

    def nodes(self) -> np.ndarray:
        """(size,) int64: the lowest rank of the node of each rank. O(size) memory."""
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        lowest = World(host, self.timeout_seconds).allreduce(np.array([self.rank]), "min", "the ranks of a node")
        host.Free()
        return self.allgather(lowest)[:, 0]

    # -- moving rows --------------------------------------------------------------------------------------------------

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        """The graph of ranks that move rows: (P,) bools, which ranks send to this one and which get rows from it."""
        ranks = (np.flatnonzero(sources), np.flatnonzero(destinations))
        return Neighbours(self._comm.Create_dist_graph_adjacent(*(each.tolist() for each in ranks)), *ranks)

    def free(self, neighbours: Neighbours) -> None:
        """Give back what :meth:`neighbours` made: a process may have some thousand of them."""
        _PROGRESS.take_over()
        neighbours.comm.Free()

    def start_alltoallv(
        self,
        send: np.ndarray,
        send_rows: np.ndarray,
        recv: np.ndarray,
        recv_rows: np.ndarray,
        what: str,
        neighbours: Neighbours | None = None,
    ) -> Pending:
        """Start moving whole rows: the first ``send_rows[0]`` rows of ``send`` go to rank 0, the next to rank 1, ...

        ``send`` and ``recv`` are C-contiguous with the same row size in bytes; ``send_rows`` and ``recv_rows`` are
        ``(size,)`` counts. Counts and displacements are in rows, so 2**31 rows, not bytes, is the limit, which
        :meth:`check_counts` checks: here it would be found by one rank alone. With ``neighbours``, only ranks that are linked
        there look at each other; all others' counts must be 0.
        """
        start = self._comm.Ialltoallv  # first of all, as this takes MPI back
        row_type = self._row_type(send)
        there = (send_rows, _displacements(send_rows))
        back = (recv_rows, _displacements(recv_rows))
        if neighbours is not None:
            start = neighbours.comm.Ineighbor_alltoallv
            there = tuple(each[neighbours.destinations] for each in there)
            back = tuple(each[neighbours.sources] for each in back)
        return self._start(start([send, there, row_type], [recv, back, row_type]), what, send, recv)

    def check_counts(self, send_rows: np.ndarray, recv_rows: np.ndarray, what: str) -> None:
        """Raise on every rank where a rank's rows are more than MPI can count, before they are moved as ``what``.

        ``send_rows``, ``recv_rows``: ``(size,)`` of whatever :meth:`start_alltoallv` is to be given.
        """
        with self.together(f"count {what}"):
            most = max(int(send_rows.sum()), int(recv_rows.sum()))
            if most > MOST_ROWS:
                raise HpcgnnError(
                    f"{what} of rank {self.rank} would be {most} items in one step, more than MPI's 2**31 - 1: "
                    f"use more than {self.size} ranks"
                )

    def alltoallv(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send ``counts[d]`` consecutive rows of ``rows`` to each rank ``d``; for the setup phase.

        ``rows`` is ``(counts.sum(), ...)``, its trailing shape and dtype equal on all ranks. Returns the rows received,
        grouped by sender in rank order, and the ``(size,)`` counts received.
        """
        rows = np.ascontiguousarray(rows)
        counts = np.ascontiguousarray(counts, dtype=np.int64)
        received_counts = np.empty_like(counts)
        request = self._comm.Ialltoall(counts, received_counts)
        self.wait(self._start(request, "a swap of row counts", counts, received_counts))
        received = np.empty((int(received_counts.sum()), *rows.shape[1:]), dtype=rows.dtype)
        self.check_counts(counts, received_counts, "redistributed rows")
        self.wait(self.start_alltoallv(rows, counts, received, received_counts, "redistributed rows"))
        return received, received_counts

    def _row_type(self, array: np.ndarray) -> Any:
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        if row_bytes not in self._row_types:
            self._row_types[row_bytes] = self._mpi.BYTE.Create_contiguous(row_bytes).Commit()
        return self._row_types[row_bytes]

    # -- files --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open_for_writing(self, path: str) -> Iterator[MpiFile]:
        """Open an existing file for disjoint writes by all ranks (plain MPI-IO; no parallel HDF5 is needed).

        Closing is collective and blocks, so a rank that raises leaves it undone: its abort must not wait for the others.
        """
        handle = self._mpi.File.Open(self._comm, path, self._mpi.MODE_WRONLY)
        yield MpiFile(handle)
        handle.Close()

    # -- errors -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Run a body without collectives; if it raises :class:`HpcgnnError` anywhere, raise the same error everywhere.

        The error of the lowest failing rank is the one shown. Any other exception is a bug: it keeps its traceback on
        its own rank, and the rank's abort ends the job.
        """
        error: HpcgnnError | None = None
        try:
            yield
        except HpcgnnError as caught:
            error = caught
        except OSError as caught:
            error = HpcgnnError(f"cannot {doing}: {caught.strerror or caught}" + _named(caught.filename))
        failing = np.array([self.size if error is None else self.rank], dtype=np.int64)
        first = int(self.allreduce(failing, "min", f"every rank to {doing}")[0])
        if first < self.size:
            raise HpcgnnError(self.broadcast(str(error), first, f"rank {first}'s problem"), agreed=True) from error


@dataclass
class MpiFile:
    """An open MPI file; ``write(byte_offset, array)`` is independent, so ranks may write different numbers of slabs."""

    handle: Any

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        """Write ``array`` (C-contiguous) at ``byte_offset``; raises ``OSError`` when the file system refuses."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        chunk = 1 << 30  # MPI-IO counts are C ints
        for start in range(0, data.size, chunk):
            piece = data[start : start + chunk]
            try:
                self.handle.Write_at(byte_offset + start, piece)
            except RuntimeError as error:  # mpi4py's MPI.Exception
                raise OSError(str(error)) from error


def _displacements(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts[:-1])))


def _named(filename: object) -> str:
    return f" ({filename})" if filename else ""
