"""A rank that runs alone, as one of many, for measurements of its own work."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.placement import Placement
from hpcgnn.world.thread_world import Meeting, ThreadWorld, one_rank, typed


class LoneWorld(ThreadWorld):
    """A rank of a job of ``size`` ranks, each on a node of its own. The other ranks are imagined: they send zeros, and reductions
    give this rank's values."""

    imagines_others = True

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(0, Meeting(1, 1.0))
        self.rank, self.size = rank, size
        self._cleared: set[int] = set()  # memory that holds the zeros

    @property
    def library(self) -> str:
        return f"one of {self.size} ranks in a process of its own"

    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        typed(result)[...] = typed(mine)
        return Pending.done(what)

    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        typed(result)[...] = 0
        return Pending.done(what)

    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        result.on_host().reshape(self.size, -1)[...] = mine.on_host().reshape(-1)
        return Pending.done(what)

    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        raise HpcgnnError(f"{what} needs other ranks, but each rank runs alone here")

    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        return Pending.done(what)

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        return value

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        memory = received.buffer.on_host()
        if memory.ctypes.data not in self._cleared:  # once, because real messages cost a rank nothing here
            self._cleared.add(memory.ctypes.data)
            memory[...] = 0
        return Pending.done(what)

    def ranks_on_my_cores(self) -> int:
        return 1

    def hosts(self) -> np.ndarray:
        return np.arange(self.size)

    def placement(self) -> Placement:
        return Placement.in_blocks(self.size, 1)

    def on_my_node(self) -> ThreadWorld:
        return one_rank()
