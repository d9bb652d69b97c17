"""Memory in which the ranks of a node hand each other rows, without messages."""

from __future__ import annotations

import os

import numpy as np
import torch

from hpcgnn.comm.agreement import together
from hpcgnn.comm.world import SharedMemory, World
from hpcgnn.errors import HpcgnnError

_PAGE_BYTES = 4096
SHARED_FOLDER = "/dev/shm"  # noqa: S108 - only its size is asked for: where MPI libraries keep what ranks share


class NodeRows:
    """Rows of all ranks of a node, one rank's behind the other's. counts: (k,) int64 rows of each.

    Memory is taken for the widest rows so far. Whoever reads what others write meets them before (:meth:`NodeMemory.meet`).
    """

    def __init__(self, counts: np.ndarray, rank: int) -> None:
        self.total, self.first = int(counts.sum()), int(counts[:rank].sum())
        self.last = self.first + int(counts[rank])
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def use(self, memory: np.ndarray, row_bytes: int) -> None:
        """Lie in these bytes from now on. Pages of this rank's rows are touched: the system then has them for nobody else, and
        they are near the rank."""
        memory[self.first * row_bytes : self.last * row_bytes : _PAGE_BYTES] = 0
        self._bytes = torch.from_numpy(memory)

    def bytes(self, count: int) -> torch.Tensor:
        """(count,) uint8, the first of the memory, for what is not rows of numbers."""
        return self._bytes[:count]

    def all(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(total, width) rows of all ranks."""
        return self._bytes[: self.total * width * dtype.itemsize].view(dtype).view(self.total, width)

    def own(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(count, width) this rank's, to write to."""
        return self.all(width, dtype)[self.first : self.last]


class NodeMemory:
    """What the ranks of a node have in common in one direction of an aggregation: the rows that they have written, and those that
    have come to them from other nodes.

    written, arrived: (k,) int64 rows of each rank. node: the ranks of this node, a part of ``world``.
    """

    def __init__(self, world: World, node: World, written: np.ndarray, arrived: np.ndarray) -> None:
        self._world, self._node = world, node
        self.written, self.arrived = NodeRows(written, node.rank), NodeRows(arrived, node.rank)
        self._row_bytes = 0
        self._memory: SharedMemory | None = None

    def prepare(self, row_bytes: int) -> None:
        """Have room for rows of so many bytes, the same on all ranks. Collective over all nodes.

        Raises:
            HpcgnnError: on every rank, where a node has not enough memory for it.
        """
        if row_bytes <= self._row_bytes:
            return
        split = -(-self.written.total * row_bytes // 64) * 64
        needed = max(split + self.arrived.total * row_bytes, 1)
        on_host = self._bytes_on_this_host(needed)
        self.free()
        with together(self._world, "share rows on a node"):
            check_room(on_host)
        memory: SharedMemory | None = None
        with together(self._world, "share rows on a node"):
            memory = self._node.share(needed)
        assert memory is not None
        self.written.use(memory.values[:split], row_bytes)
        self.arrived.use(memory.values[split:], row_bytes)
        self._row_bytes, self._memory = row_bytes, memory
        memory.meet()

    def free(self) -> None:
        """Give the memory back; rows have none until :meth:`prepare`. Collective on the node."""
        if self._memory is not None:
            self._memory.meet()
            for rows in (self.written, self.arrived):
                rows.use(np.empty(0, np.uint8), 0)
            self._memory.free()
            self._row_bytes, self._memory = 0, None

    def _bytes_on_this_host(self, needed: int) -> int:
        """What all nodes of this host take, where ``HPCGNN_RANKS_PER_NODE`` makes several of one. Collective; O(P) memory."""
        mine = np.array([needed if self._node.rank == 0 else 0])
        hosts = self._world.nodes()
        return int(self._world.allgather(mine)[hosts == hosts[self._world.rank], 0].sum())

    def meet(self) -> None:
        """Wait for the ranks of this node: from here on each sees what all have written before. Collective on the node."""
        assert self._memory is not None, "rows have no memory before prepare()"
        self._memory.meet()


def check_room(num_bytes: int, folder: str = SHARED_FOLDER) -> None:
    """Raise HpcgnnError where ranks of this node cannot share so many bytes more."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return  # shared memory is elsewhere here, and MPI says so itself where there is none
    free = found.f_bavail * found.f_frsize
    if num_bytes > free:
        raise HpcgnnError(
            f"the ranks of a node share {num_bytes >> 20:,} MiB of boundary rows, and {folder} of {os.uname().nodename} has "
            f"{free >> 20:,} MiB free: enlarge it (mount -o remount,size=..., docker run --shm-size ...), or pass "
            "--node-aware off"
        )
