"""Records that ranks send each other while they build a plan, and answers to them."""

from __future__ import annotations

import numpy as np

from hpcgnn.world import World


class RecordExchange:
    """An exchange of records between all ranks. Construction is collective.

    Args:
        to: (m,) int64 receiver of each record. records: (m, c) int64 this rank's records.

    Attributes:
        received: (r, c) int64 records for this rank, by sender and then in the sender's order. senders: (r,) int64 ranks.
    """

    def __init__(self, world: World, to: np.ndarray, records: np.ndarray) -> None:
        self._world, self._order = world, np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=world.size)
        self.received, self._counts = world.alltoallv(records[self._order], counts)
        self.senders = np.repeat(np.arange(world.size), self._counts)

    def answered(self, answers: np.ndarray) -> np.ndarray:
        """(m, k) int64 answers to this rank's records, in their order. answers: (r, k) int64, this rank's to the records that
        it received. Collective."""
        back, _ = self._world.alltoallv(answers, self._counts)
        mine = np.empty_like(back)
        mine[self._order] = back
        return mine
