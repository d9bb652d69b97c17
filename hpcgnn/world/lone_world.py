"""A rank that runs alone, as one of many, for measurements of its own work."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.placement import Placement
from hpcgnn.world.thread_world import Meeting, ThreadWorld, one_rank, typed
from hpcgnn.world.world import World


class LoneWorld(ThreadWorld):
    """A rank of a job of ``size`` ranks, each on a node of its own. The other ranks are imagined: they send zeros, and reductions
    give this rank's values."""

    imagines_others = True

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(0, Meeting(1, 1.0))
        self.rank, self.size = rank, size
        self._cleared = weakref.WeakSet[Segments]()  # whose memory holds the zeros

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
        raise HpcgnnError(
            "this model or graph needs rows of other ranks while it is built, and each rank runs alone here: choose a model "
            "whose sums follow --strategy, such as sage, gin or gcn, without edge weights"
        )

    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        return Pending.done(what)

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        if self.rank != root:
            raise HpcgnnError(
                f"{what} comes from rank {root}, and each rank runs alone here: leave out the option that needs it"
            )
        return value

    def apart(self) -> World:
        return self

    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        if received not in self._cleared:  # once for each exchange, because real messages cost a rank nothing here
            self._cleared.add(received)
            received.buffer.on_host()[...] = 0
        return Pending.done(what)

    def ranks_on_my_cores(self) -> int:
        return 1

    def hosts(self) -> np.ndarray:
        return np.arange(self.size)

    def placement(self) -> Placement:
        return Placement.in_blocks(self.size, 1)

    def on_my_node(self) -> ThreadWorld:
        return one_rank()
