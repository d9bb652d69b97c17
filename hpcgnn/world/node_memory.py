"""Memory that the ranks of a node share, through which they pass rows to each other without messages."""

from __future__ import annotations

import os

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world.world import SharedMemory, World, raise_on_all_ranks

_PAGE_BYTES = 4096
SHARED_FOLDER = "/dev/shm"  # noqa: S108 - MPI libraries keep shared memory there; only its free space is looked up


class NodeRows:
    """Rows of all k ranks of a node, rank after rank. counts: (k,) int64 number of rows of each. rank: this rank on its node. A
    rank calls :meth:`NodeMemory.meet` before it reads rows that others have written."""

    def __init__(self, counts: np.ndarray, rank: int) -> None:
        self.total, self.first = int(counts.sum()), int(counts[:rank].sum())
        self.last = self.first + int(counts[rank])
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def use(self, memory: np.ndarray, row_bytes: int) -> None:
        """Keep the rows in these bytes from now on. Touching the pages of its own rows makes the system reserve them, in memory
        near this rank's cores."""
        memory[self.first * row_bytes : self.last * row_bytes : _PAGE_BYTES] = 0
        self._bytes = torch.from_numpy(memory)

    def bytes(self, count: int) -> torch.Tensor:
        """(count,) uint8 the first bytes of the memory, for contents other than rows of numbers."""
        return self._bytes[:count]

    def all(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(total, width) rows of all ranks."""
        return self._bytes[: self.total * width * dtype.itemsize].view(dtype).view(self.total, width)

    def own(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(count, width) rows of this rank, which it may write."""
        return self.all(width, dtype)[self.first : self.last]


class NodeMemory:
    """Memory that the ranks of a node share in one direction of an aggregation, as large as the widest rows so far need.

    world: all ranks. node: the k ranks of this node. written, arrived: (k,) int64 number of rows that each rank writes for the
    others, and receives from other nodes.
    """

    def __init__(self, world: World, node: World, written: np.ndarray, arrived: np.ndarray) -> None:
        self._world, self._node = world, node
        self.written, self.arrived = NodeRows(written, node.rank), NodeRows(arrived, node.rank)
        self._row_bytes = 0
        self._memory: SharedMemory | None = None

    def prepare(self, row_bytes: int) -> None:
        """Make room for rows of ``row_bytes`` bytes, a number that is the same on all ranks; HpcgnnError on every rank where a
        node does not have enough shared memory. Collective over all nodes; O(P) memory."""
        if row_bytes <= self._row_bytes:
            return
        split = -(-self.written.total * row_bytes // 64) * 64
        needed = max(split + self.arrived.total * row_bytes, 1)
        # ``HPCGNN_RANKS_PER_NODE`` divides a host into nodes, which need memory together.
        hosts, mine = self._world.hosts(), np.array([needed if self._node.rank == 0 else 0])
        on_host = int(self._world.allgather(mine)[hosts == hosts[self._world.rank], 0].sum())
        self.free()
        with raise_on_all_ranks(self._world, "share rows on a node"):
            check_room(on_host)
        with raise_on_all_ranks(self._world, "share rows on a node"):
            memory = self._node.share(needed)
        self.written.use(memory.values[:split], row_bytes)
        self.arrived.use(memory.values[split:], row_bytes)
        self._row_bytes, self._memory = row_bytes, memory
        memory.meet()

    def free(self) -> None:
        """Give the memory back; the next :meth:`prepare` takes it anew. Collective on the node."""
        if self._memory is not None:
            self._memory.meet()
            for rows in (self.written, self.arrived):
                rows.use(np.empty(0, np.uint8), 0)
            self._memory.free()
            self._row_bytes, self._memory = 0, None

    def meet(self) -> None:
        """Wait for the ranks of this node; afterwards each sees all rows written before. Collective on the node."""
        assert self._memory is not None, "rows have no memory before prepare()"
        self._memory.meet()


def check_room(num_bytes: int, folder: str = SHARED_FOLDER) -> None:
    """Raise HpcgnnError unless the ranks of this node can share ``num_bytes`` bytes more."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return  # this system keeps shared memory elsewhere; MPI itself raises an error if there is none
    free = found.f_bavail * found.f_frsize
    if num_bytes > free:
        raise HpcgnnError(
            f"the ranks of a node share {num_bytes >> 20:,} MiB of boundary rows, and {folder} of {os.uname().nodename} has "
            f"{free >> 20:,} MiB free: enlarge it (mount -o remount,size=..., docker run --shm-size ...), or pass "
            "--node-aware off"
        )
