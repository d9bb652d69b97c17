"""The ranks of a job as all code outside ``world/`` sees them: a few collectives, and what ranks agree on, without MPI's types.

Two rules hold for every world. Every wait goes through :meth:`World.wait`. And a rank that finds a problem raises it through
:func:`raise_on_all_ranks` before the next collective, because a rank that raises alone leaves the others waiting for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import xxhash

from hpcgnn.base.byte_sink import ByteSink
from hpcgnn.base.errors import HpcgnnError, WrongTypeError, WrongValueError
from hpcgnn.base.version import __version__
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments, Values, beside, contiguous, empty, on_host
from hpcgnn.world.exchange_queue import ExchangeQueue
from hpcgnn.world.placement import Placement

DEFAULT_TIMEOUT_SECONDS = 1800.0
MOST_ROWS = 2**31 - 1  # rows of one rank in one exchange: counts and displacements are C ints in MPI


@dataclass(frozen=True)
class MpiHandle:
    """A communicator for a C library: a pointer (Open MPI) or an int (MPICH). num_bytes: size of ``MPI_Comm``."""

    value: int
    num_bytes: int


class SharedMemory(Protocol):
    """Memory that all ranks of a node read and write. values: (num_bytes,) uint8, the whole of it."""

    values: np.ndarray

    def meet(self) -> None:
        """Wait until all ranks of the node are here; afterwards each sees all that was written before. Collective on the node."""
        ...

    def free(self) -> None:
        """Give the memory back; nobody may hold a view of it any more. Collective on the node."""
        ...


T = TypeVar("T")


class OfRanks:
    """An object of one rank, which copies of the objects that hold it share, and which cannot be saved."""

    def __copy__(self: T) -> T:
        """An object of the same rank, whose attributes may be set without a change of this one."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        return self

    def __reduce__(self) -> NoReturn:
        raise HpcgnnError(
            f"a {type(self).__name__} belongs to one rank of this job and cannot be saved: keep it outside of the model that is "
            "saved, or set that attribute to None before"
        )


class World(OfRanks, ABC):
    """The ranks of a job, ``graph.world``.

    Every method is collective unless its docstring says otherwise: all ranks call it, in the same order, with values of the
    same shape and type unless stated otherwise. Methods that take tensors return tensors, and those that take arrays return
    arrays. The exchanges of an epoch take a ``hpcgnn.world.Buffer`` instead, whose owner keeps the memory.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
        timeout_seconds: longest time that a wait may take, in seconds; after it, HpcgnnError is raised.
        imagines_others: whether only this rank exists, in a measurement, so that what all ranks hold cannot be checked.
    """

    imagines_others = False

    def __init__(self, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank, self.size, self.timeout_seconds = rank, size, timeout_seconds
        self.wait_for_latest: Callable[[], object] | None = None  # set while training measures imbalance

    def __copy__(self) -> World:
        return self  # two that count calls by themselves would not fit the other ranks

    @property
    @abstractmethod
    def library(self) -> str:
        """Name and version of the library that moves the bytes, in one line. Not collective."""

    @property
    def mpi_handle(self) -> MpiHandle | None:
        """The communicator for C libraries that take one; None without MPI. Not collective."""
        return None

    # -- waiting ------------------------------------------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        """Let ``pending`` make progress; true once it is complete. Not collective."""
        return pending.test()

    def watch(self, pending: Pending) -> None:
        """Let ``pending`` make progress whenever this rank does not wait, until it is complete; nothing where each collective
        is complete. Its buffers must live at least as long. Not collective."""

    @abstractmethod
    def wait(self, pending: Pending) -> None:
        """Wait until ``pending`` is complete, and yield the core meanwhile; raises StalledError after ``timeout_seconds``. Not
        collective."""

    def meet(self) -> None:
        """Called before each collective of a training step: wait for the latest rank if this wait is to be measured."""
        if self.wait_for_latest is not None:
            self.wait_for_latest()

    # -- collectives that end later -----------------------------------------------------------------------------------

    @abstractmethod
    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        """Start the element-wise ``sum``, ``max`` or ``min`` of ``mine`` over ranks, into other memory, ``result``."""

    @abstractmethod
    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start the sum over the ranks below this one; on rank 0 ``result`` is left alone."""

    @abstractmethod
    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start to gather every rank's ``mine`` into ``result``, in rank order."""

    @abstractmethod
    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start to send row d of ``mine`` to rank d, for every rank d."""

    @abstractmethod
    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        """Start to overwrite ``values``, of less than 2 GiB, with the values of rank ``root``."""

    @abstractmethod
    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        """Start to move whole rows: the first segment of ``send`` goes to rank 0, the next to rank 1, ...

        Rows of ``send`` and ``received`` have the same size. Counts and displacements are in rows, so the limit is 2**31 rows,
        not bytes. :meth:`check_counts` checks it beforehand, because here one rank alone might find it exceeded. With
        ``neighbours``, only ranks that are linked in this graph take notice of each other; all other segments must be empty.
        """

    @abstractmethod
    def exchange_queue(self) -> ExchangeQueue:
        """The queue of exchanges that start once their bytes are ready; one for the whole world. The first call is collective."""

    def apart(self) -> World | None:
        """The same ranks, whose collectives may start in another order beside this world's on each rank; None where a collective
        that starts waits for the other ranks. The first call is collective."""
        return None

    def takes_memory_of(self, kind: str) -> bool:
        """Return whether the library that moves the bytes says that it takes memory of devices of this type. Not collective."""
        return False

    @abstractmethod
    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        """The graph of ranks that exchange rows; ``sources`` and ``destinations``, (P,) bool, mark the ranks that send rows to
        this rank, and those that receive rows from it."""

    def free(self, neighbours: Neighbours) -> None:
        """Give back the communicator of ``neighbours``, if any: MPI lets a process have some thousand communicators only."""

    def close(self) -> None:
        """Give back everything that this world has made: graphs of ranks, shared memory, and worlds of nodes. Objects that use
        them must not be used any more. Do not call it after an error, when other ranks may wait for something else."""

    # -- small collectives, made from those above ---------------------------------------------------------------------

    def allreduce(self, values: Values, op: str = "sum", what: str = "a reduction") -> Values:
        """Element-wise ``sum``, ``max`` or ``min`` over ranks, in new memory on every rank."""
        return self._collected(values, lambda mine, result: self.start_allreduce(mine, result, op, what))

    def exscan(self, values: Values) -> Values:
        """Element-wise sum over the ranks below this one (zeros on rank 0)."""
        return self._collected(values, lambda mine, result: self.start_exscan(mine, result, "a prefix sum"))

    def allgather(self, values: Values) -> Values:
        """Stack every rank's equally shaped ``values``: result ``(size, *shape)``. O(size) memory on each rank."""
        return self._collected(
            values, lambda mine, result: self.start_allgather(mine, result, "a gather of sizes"), self.size
        )

    def _collected(self, values: Values, start: Callable[[Buffer, Buffer], Pending], *dimensions: int) -> Values:
        """The result, on the device of ``values``, of a collective of host memory; with more ``dimensions`` than ``values``."""
        mine = contiguous(on_host(values))
        result = empty(mine, *dimensions, *mine.shape)
        result[...] = 0
        self.wait(start(Buffer.of(mine), Buffer.of(result)))
        return beside(values, result)

    def check_counts(self, send_rows: np.ndarray, received_rows: np.ndarray, what: str) -> None:
        """Raise HpcgnnError on every rank, before an exchange ``what`` starts, where a rank has more rows than MPI can count.
        ``send_rows``, ``received_rows``: (size,) counts that :meth:`start_alltoallv` is to be given."""
        with raise_on_all_ranks(self, f"count {what}"):
            most = max(int(send_rows.sum()), int(received_rows.sum()))
            if most > MOST_ROWS:
                raise HpcgnnError(
                    f"{what} of rank {self.rank} would be {most} items in one step, more than MPI's 2**31 - 1: "
                    f"use more than {self.size} ranks"
                )

    def alltoallv(self, rows: Values, counts: np.ndarray) -> tuple[Values, np.ndarray]:
        """Send ``counts[d]`` consecutive rows of ``rows`` (counts.sum(), ...) to each rank ``d``; for the setup phase. Returns
        the rows received, grouped by sender in rank order, and the ``(size,)`` counts received."""
        mine, counts = contiguous(on_host(rows)), np.ascontiguousarray(counts, dtype=np.int64)
        received_counts = np.empty_like(counts)
        self.wait(self.start_alltoall(Buffer.of(counts), Buffer.of(received_counts), "a swap of row counts"))
        received = empty(mine, int(received_counts.sum()), *mine.shape[1:])
        what = "redistributed rows"
        self.check_counts(counts, received_counts, what)
        segments = Segments(Buffer.of(mine), counts), Segments(Buffer.of(received), received_counts)
        self.wait(self.start_alltoallv(*segments, what))
        return beside(rows, received), received_counts

    def to_rank_0(self, rows: Values) -> Values:
        """The ``rows`` of all ranks, in rank order, on rank 0; none on the others."""
        counts = np.zeros(self.size, np.int64)
        counts[0] = len(rows)
        return self.alltoallv(rows, counts)[0]

    def rows_of(self, bounds: np.ndarray, slab: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """(m, ...) rows of any ``ids`` (m,), from the ranks whose ranges of ids, between the (size + 1,) ``bounds``, have them
        in their ``slab``; ``m`` may differ between ranks."""
        if self.size == 1:
            return slab[ids]
        distinct, place = np.unique(ids, return_inverse=True)  # each travels once
        asked, counts = self.alltoallv(distinct, np.diff(np.searchsorted(distinct, bounds)))
        return self.alltoallv(slab[asked - bounds[self.rank]], counts)[0][place]

    _MOST_BROADCAST_BYTES = 1 << 30  # counts are C ints

    def broadcast_into(self, values: Values, root: int = 0, what: str = "a broadcast") -> Values:
        """Overwrite ``values`` (contiguous) with the values of rank ``root``."""
        mine = on_host(values)
        flat = mine.reshape(-1)
        step = max(self._MOST_BROADCAST_BYTES // mine.itemsize, 1)
        for first in range(0, len(flat), step):
            self.wait(self.start_broadcast(Buffer.of(flat[first : first + step]), root, what))
        if mine is not values:
            values[...] = beside(values, mine)
        return values

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """Rank ``root``'s picklable ``value`` on every rank; for the setup phase."""
        payload = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy() if self.rank == root else None
        length = np.array([0 if payload is None else payload.size], dtype=np.int64)
        self.broadcast_into(length, root, what)
        if payload is None:
            payload = np.empty(int(length[0]), dtype=np.uint8)
        return pickle.loads(self.broadcast_into(payload, root, what).tobytes())  # noqa: S301 - a rank of this same job pickled it

    # -- nodes and files ----------------------------------------------------------------------------------------------

    @abstractmethod
    def ranks_on_my_cores(self) -> int:
        """Number of ranks of this host that may run on exactly the same cores as this one, itself included."""

    @abstractmethod
    def hosts(self) -> np.ndarray:
        """(size,) int64 lowest rank of each rank's host. O(size) memory."""

    @abstractmethod
    def placement(self) -> Placement:
        """The node of each rank. Ranks of a node share memory; ``HPCGNN_RANKS_PER_NODE=K`` divides each host into nodes of K
        ranks, for instance one for each socket. O(size) memory."""

    @abstractmethod
    def on_my_node(self) -> World:
        """The ranks of this rank's node in :meth:`placement`, as a world of their own, in the same order."""

    @abstractmethod
    def share(self, num_bytes: int) -> SharedMemory:
        """``num_bytes`` bytes of shared memory for all ranks of this world, which must be on one node; 0 at first. HpcgnnError
        may be raised on some ranks only."""

    @abstractmethod
    def open_shared(self, path: str) -> ByteSink:
        """Open an existing file that all ranks write to; see :func:`open_for_writing`."""


@contextlib.contextmanager
def raise_on_all_ranks(world: World, doing: str) -> Iterator[None]:
    """Run a body that has no collectives; if it raises :class:`HpcgnnError` on any rank, raise that of the lowest one on all.
    An ``OSError`` becomes "cannot <doing>: ...". Any other exception is a bug: it keeps its traceback on its own rank, whose
    abort ends the job. Collective."""
    error: HpcgnnError | None = None
    try:
        yield
    except HpcgnnError as caught:
        error = caught
    except OSError as caught:
        named = f" ({caught.filename})" if caught.filename else ""
        error = HpcgnnError(f"cannot {doing}: {caught.strerror or caught}" + named)
    failing = np.array([world.size if error is None else world.rank], dtype=np.int64)
    first = int(world.allreduce(failing, "min", f"every rank to {doing}")[0])
    if first < world.size:
        kind = next((each for each in (WrongValueError, WrongTypeError) if isinstance(error, each)), HpcgnnError)
        kind, sentence = world.broadcast((kind, str(error)), first, f"rank {first}'s problem")
        # If this rank's error has the same sentence, it is left out, because a traceback should show each sentence once.
        cause = error.__cause__ if error is not None and str(error) == sentence else error
        raise kind(sentence, agreed=True) from cause


def same_everywhere(world: World, values: Sequence[int], problem: str) -> None:
    """Raise :class:`HpcgnnError` with ``problem`` on every rank unless all have the same ``values`` below 2**64. Collective."""
    if not _are_equal(world, values, "the ranks to compare what they have read"):
        raise HpcgnnError(problem, agreed=True)


def _are_equal(world: World, values: Sequence[int], what: str) -> bool:
    mine = np.array(values, dtype=np.uint64).view(np.int64)
    most = world.allreduce(np.concatenate((mine, ~mine)), "max", what)
    return np.array_equal(most[: mine.size], ~most[mine.size :])


@contextlib.contextmanager
def open_for_writing(world: World, path: str) -> Iterator[ByteSink]:
    """Open an existing file for disjoint writes by all ranks. Collective. Closing is collective and blocks. So a rank that raises
    does not close the file: its abort must not wait for the others."""
    with raise_on_all_ranks(world, f"write {path}"):
        sink = world.open_shared(path)
    yield sink
    with raise_on_all_ranks(world, f"write {path}"):
        sink.close()


W = TypeVar("W", bound="World")
# Variables in which Open MPI, MPICH, MVAPICH and Slurm's steps give a rank the number of ranks. A batch script is in no step.
_ALONE = "HPCGNN_ALONE"
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def told_sizes() -> dict[str, int]:
    """The number of ranks according to each variable of a launcher that is set; empty outside a launcher."""
    return {name: int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdecimal()}


def check_not_alone(size: int, library: str) -> None:
    """Raise HpcgnnError for a process that MPI says is alone, though its launcher has started several: P jobs of one rank each
    would write the same files. Not collective."""
    told = told_sizes()
    if size > 1 or not told or min(told.values()) == 1 or os.environ.get(_ALONE):
        return
    name, ranks = next(iter(told.items()))
    raise HpcgnnError(
        f"the launcher has started {ranks} ranks ({name}), but in each of them MPI sees only that rank, because the launcher "
        f"belongs to another MPI than the one that mpi4py has loaded ({library}): use `hpcgnn launch -n {ranks}`, or the mpiexec "
        f"of that library; or set {_ALONE}=1 if each process is to be a separate job"
    )


def check_alike(world: W) -> W:
    """Return ``world`` if all its ranks run one version of hpcgnn on one MPI library; else raise HpcgnnError on all ranks.
    Collective: one small reduction, the first of a job, because later ones may differ between versions."""
    # After the first comma, Open MPI names the person and the host that built it, which may differ from node to node.
    mine = f"hpcgnn {__version__} on {world.library.partition(',')[0]}"
    if _are_equal(world, [xxhash.xxh3_64_intdigest(mine.encode())], "the other ranks to start"):
        return world
    first = world.broadcast(mine, what="the version of rank 0")
    with raise_on_all_ranks(world, "compare versions"):
        if mine != first:
            raise HpcgnnError(
                f"rank {world.rank} runs {mine}, but rank 0 runs {first}: install one version of both on all nodes"
            )
    return world
