"""Ranks, as everything above ``comm/`` knows them: a few collectives, and nothing of MPI.

:class:`hpcgnn.comm.mpi_world.MpiWorld` has them over MPI; :class:`hpcgnn.comm.thread_world.ThreadWorld` among the threads of one
process, for tests and rehearsals. Two rules hold for both. Every wait goes through :meth:`World.wait`. And a rank that finds a
problem says so through :func:`hpcgnn.comm.agreement.together` before the next collective, because one rank that raises alone
leaves the others hanging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcgnn.byte_sink import ByteSink
from hpcgnn.comm.buffer import Buffer, Values
from hpcgnn.comm.channel import Channel
from hpcgnn.comm.pending import Pending
from hpcgnn.comm.placement import Placement
from hpcgnn.comm.segments import Neighbours, Segments

DEFAULT_TIMEOUT_SECONDS = 1800.0
MOST_ROWS = 2**31 - 1  # of one rank in one exchange: counts and displacements are C ints in MPI


@dataclass(frozen=True)
class MpiHandle:
    """A communicator for a C library: a pointer (Open MPI) or an int (MPICH). num_bytes: of ``MPI_Comm``."""

    value: int
    num_bytes: int


class SharedMemory(Protocol):
    """Memory that all ranks of a node read and write. values: (num_bytes,) uint8, of all ranks."""

    values: np.ndarray

    def meet(self) -> None:
        """Wait until all ranks of the node are here: each sees what all have written before. Collective on the node.

        Raises StalledError as :meth:`World.wait` does.
        """
        ...

    def free(self) -> None:
        """Give the memory back, of which nobody may hold a view any more. Collective on the node."""
        ...


class World(Protocol):
    """The ranks of a job.

    rank, size: this one of so many. timeout_seconds: how long a wait may take.

    Every method but :meth:`test` and :meth:`watch` is collective: all ranks call it, in the same order, with values of the same
    shape and type unless stated otherwise. Values are tensors or arrays in, and the same out; what is exchanged in an epoch is
    given as :class:`Buffer` instead, whose memory its owner keeps.
    """

    rank: int
    size: int
    timeout_seconds: float

    @property
    def library(self) -> str:
        """Name and version of what moves the bytes, one line. Not collective."""
        ...

    @property
    def mpi_handle(self) -> MpiHandle | None:
        """For C libraries that take a communicator; None without MPI. Not collective."""
        ...

    # -- waiting ------------------------------------------------------------------------------------------------------

    def test(self, pending: Pending) -> bool:
        """Let ``pending`` make progress; true once it is complete. Not collective."""
        ...

    def watch(self, pending: Pending) -> None:
        """Let ``pending`` make progress whenever this rank does not wait, until it is complete. Not collective.

        Its buffers live at least as long.
        """
        ...

    def wait(self, pending: Pending) -> None:
        """Wait until ``pending`` is complete, yielding the core; raises StalledError after ``timeout_seconds`` without an end."""
        ...

    # -- what an epoch is made of -------------------------------------------------------------------------------------

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        """Start the element-wise ``sum``, ``max`` or ``min`` over ranks of ``mine`` into ``result``, which must differ."""
        ...

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        """Start moving whole rows: the first segment of ``send`` goes to rank 0, the next to rank 1, ...

        ``send`` and ``received`` have the same size of a row. Counts and displacements are in rows, so 2**31 rows, not bytes, is
        the limit, which :meth:`check_counts` checks: here it would be found by one rank alone. With ``neighbours``, only ranks
        that are linked there look at each other; all others' segments must be empty.
        """
        ...

    def channel(self) -> Channel:
        """For exchanges that start in their turn: one for all of this world. Collective when it is first asked for."""
        ...

    def takes_memory_of(self, kind: str) -> bool:
        """Whether what moves the bytes says that it reads and writes memory of devices of this type. Not collective."""
        ...

    def check_counts(self, send_rows: np.ndarray, received_rows: np.ndarray, what: str) -> None:
        """Raise on every rank where a rank's rows are more than can be counted, before they are moved as ``what``.

        ``send_rows``, ``received_rows``: ``(size,)`` of whatever :meth:`start_alltoallv` is to be given.
        """
        ...

    def neighbours(self, sources: np.ndarray, destinations: np.ndarray) -> Neighbours:
        """The graph of ranks that move rows: (P,) bools, which ranks send to this one and which get rows from it."""
        ...

    def free(self, neighbours: Neighbours) -> None:
        """Give back what :meth:`neighbours` made: a process may have some thousand of them."""
        ...

    def close(self) -> None:
        """Give back all that this world has made and that is left: graphs of ranks, memory that ranks share, and worlds of nodes.
        Nothing that uses them may be used any more. Not after an error, where ranks may wait for something else."""
        ...

    # -- small collectives --------------------------------------------------------------------------------------------

    def allreduce(self, values: Values, op: str = "sum", what: str = "a reduction") -> Values:
        """Element-wise ``sum``, ``max`` or ``min`` over ranks, as new values on every rank."""
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
        """Overwrite ``values`` (contiguous) with rank ``root``'s."""
        ...

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """Rank ``root``'s picklable ``value`` on every rank; for the setup phase."""
        ...

    # -- where ranks are ----------------------------------------------------------------------------------------------

    def ranks_on_my_cores(self) -> int:
        """How many ranks of this host may run on exactly the cores that this one may run on, itself included."""
        ...

    def nodes(self) -> np.ndarray:
        """(size,) int64: the lowest rank of the node of each rank. O(size) memory."""
        ...

    def placement(self) -> Placement:
        """The nodes of all ranks, which share memory. ``HPCGNN_RANKS_PER_NODE=K`` divides each host into nodes of K ranks, for
        instance one for each socket. O(size) memory."""
        ...

    def on_my_node(self) -> World:
        """The ranks of this rank's node in :meth:`placement`, as a world of their own, in the same order."""
        ...

    def share(self, num_bytes: int) -> SharedMemory:
        """So many bytes, 0 to begin with, for all ranks of this world, which must be on one node.

        Raises:
            HpcgnnError: perhaps on some ranks only.
        """
        ...

    def open_shared(self, path: str) -> ByteSink:
        """Open an existing file that all ranks write to; see :func:`hpcgnn.comm.files.open_for_writing`."""
        ...
