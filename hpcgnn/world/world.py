"""The interface to ranks for all code outside ``world/``: a few collectives, without MPI's types.

:class:`hpcgnn.world.mpi_world.MpiWorld` implements it over MPI, and :class:`hpcgnn.world.thread_world.ThreadWorld` among the
threads of one process, for tests and rehearsals. Two rules hold for both. Every wait goes through :meth:`World.wait`. And a rank
that finds a problem raises it through :func:`hpcgnn.world.agreement.raise_on_all_ranks` before the next collective, because a
rank that raises alone leaves the others waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcgnn.base.byte_sink import ByteSink
from hpcgnn.world.buffer import Buffer, Values
from hpcgnn.world.exchange_queue import ExchangeQueue
from hpcgnn.world.pending import Pending
from hpcgnn.world.placement import Placement
from hpcgnn.world.segments import Neighbours, Segments

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
        """Wait until all ranks of the node are here; afterwards each sees all that was written before. Collective on the node.

        Raises:
            StalledError: as :meth:`World.wait`.
        """
        ...

    def free(self) -> None:
        """Give the memory back; nobody may hold a view of it any more. Collective on the node."""
        ...


class World(Protocol):
    """The ranks of a job, ``graph.world``.

    Every method is collective unless its docstring says otherwise: all ranks call it, in the same order, with values of the
    same shape and type unless stated otherwise. Methods that take tensors return tensors, and those that take arrays return
    arrays. The exchanges of an epoch take a ``hpcgnn.world.Buffer`` instead, whose owner keeps the memory.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
        timeout_seconds: longest time that a wait may take, in seconds; after it, HpcgnnError is raised.
    """

    rank: int
    size: int
    timeout_seconds: float

    @property
    def library(self) -> str:
        """Name and version of the library that moves the bytes, in one line. Not collective."""
        ...

    @property
    def mpi_handle(self) -> MpiHandle | None:
        """The communicator for C libraries that take one; None without MPI. Not collective."""
        ...

    # -- waiting ------------------------------------------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        """Let ``pending`` make progress; true once it is complete. Not collective."""
        ...

    def watch(self, pending: Pending) -> None:
        """Let ``pending`` make progress whenever this rank does not wait, until it is complete. Not collective.

        Its buffers must live at least as long.
        """
        ...

    def wait(self, pending: Pending) -> None:
        """Wait until ``pending`` is complete, and yield the core meanwhile. Not collective.

        Raises:
            StalledError: if it is not complete after ``timeout_seconds``.
        """
        ...

    # -- collectives of an epoch --------------------------------------------------------------------------------------

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        """Start the element-wise ``sum``, ``max`` or ``min`` of ``mine`` over ranks, into other memory, ``result``."""
        ...

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        """Start to move whole rows: the first segment of ``send`` goes to rank 0, the next to rank 1, ...

        Rows of ``send`` and ``received`` have the same size. Counts and displacements are in rows, so the limit is 2**31 rows,
        not bytes. :meth:`check_counts` checks it beforehand, because here one rank alone might find it exceeded. With
        ``neighbours``, only ranks that are linked in this graph take notice of each other; all other segments must be empty.
        """
        ...

    def exchange_queue(self) -> ExchangeQueue:
        """The queue of exchanges that start once their bytes are ready; one for the whole world. The first call is collective."""
        ...

    def takes_memory_of(self, kind: str) -> bool:
        """Return whether the library that moves the bytes says that it takes memory of devices of this type. Not collective."""
        ...

    def check_counts(self, send_rows: np.ndarray, received_rows: np.ndarray, what: str) -> None:
        """Check that MPI can count the rows of an exchange ``what`` before it starts.

        ``send_rows``, ``received_rows``: (size,) counts that :meth:`start_alltoallv` is to be given.

        Raises:
            HpcgnnError: on every rank, where a rank has more rows than can be counted.
        """
        ...

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        """The graph of ranks that exchange rows; ``sources`` and ``destinations``, (P,) bool, mark the ranks that send rows to
        this rank, and those that receive rows from it."""
        ...

    def free(self, neighbours: Neighbours) -> None:
        """Give back the communicator of ``neighbours``: MPI lets a process have some thousand communicators only."""
        ...

    def close(self) -> None:
        """Give back everything that this world has made: graphs of ranks, shared memory, and worlds of nodes. Objects that use
        them must not be used any more. Do not call it after an error, when other ranks may wait for something else."""
        ...

    # -- small collectives --------------------------------------------------------------------------------------------

    def allreduce(self, values: Values, op: str = "sum", what: str = "a reduction") -> Values:
        """Element-wise ``sum``, ``max`` or ``min`` over ranks, in new memory on every rank."""
        ...

    def exscan(self, values: Values) -> Values:
        """Element-wise sum over the ranks below this one (zeros on rank 0)."""
        ...

    def allgather(self, values: Values) -> Values:
        """Stack every rank's equally shaped ``values``: result ``(size, *shape)``. O(size) memory on each rank."""
        ...

    def alltoallv(self, rows: Values, counts: np.ndarray) -> tuple[Values, np.ndarray]:
        """Send ``counts[d]`` consecutive rows of ``rows`` to each rank ``d``; for the setup phase.

        ``rows`` is ``(counts.sum(), ...)``, its trailing shape and type equal on all ranks. Returns the rows received,
        grouped by sender in rank order, and the ``(size,)`` counts received.
        """
        ...

    def broadcast_into(self, values: Values, root: int = 0, what: str = "a broadcast") -> Values:
        """Overwrite ``values`` (contiguous) with the values of rank ``root``."""
        ...

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """Rank ``root``'s picklable ``value`` on every rank; for the setup phase."""
        ...

    # -- nodes and files ----------------------------------------------------------------------------------------------

    def ranks_on_my_cores(self) -> int:
        """Number of ranks of this host that may run on exactly the same cores as this one, itself included."""
        ...

    def hosts(self) -> np.ndarray:
        """(size,) int64 lowest rank of each rank's host. O(size) memory."""
        ...

    def placement(self) -> Placement:
        """The node of each rank. Ranks of a node share memory; ``HPCGNN_RANKS_PER_NODE=K`` divides each host into nodes of K
        ranks, for instance one for each socket. O(size) memory."""
        ...

    def on_my_node(self) -> World:
        """The ranks of this rank's node in :meth:`placement`, as a world of their own, in the same order."""
        ...

    def share(self, num_bytes: int) -> SharedMemory:
        """``num_bytes`` bytes of shared memory for all ranks of this world, which must be on one node; 0 at first.

        Raises:
            HpcgnnError: possibly on some ranks only.
        """
        ...

    def open_shared(self, path: str) -> ByteSink:
        """Open an existing file that all ranks write to; see :func:`hpcgnn.world.files.open_for_writing`."""
        ...
