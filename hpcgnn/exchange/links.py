"""The choice of the collective that moves an exchange's rows: over all ranks, or over the graph of ranks that have rows for each
other.

With P ranks, each of which exchanges rows with k others, MPI's ``Ialltoallv`` may read P counts in each call, and its
neighbourhood form reads k. Which one is faster also depends on the library: so both are measured, with the rows of the plan,
before training starts.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.world.buffer import Buffer, Neighbours, Segments
from hpcgnn.world.world import World

_ROUNDS = 5


@dataclass(frozen=True)
class RankGraphs:
    """The graph of ranks of an exchange (``forward``) and that of the backward pass's exchange (``backward``)."""

    forward: Neighbours
    backward: Neighbours

    def reverse(self) -> RankGraphs:
        """The links of the exchange in the other direction."""
        return RankGraphs(self.backward, self.forward)


def choose_links(
    world: World, send_counts: np.ndarray, receive_counts: np.ndarray, collective: str = "auto", row_bytes: int = 1024
) -> RankGraphs | None:
    """The graph of ranks to exchange rows over, or None to use ``Ialltoallv``. Collective.

    send_counts, receive_counts: (P,) int64 rows to and from each rank. collective: ``alltoallv``, ``neighbour``, or ``auto``,
    which measures both with rows of ``row_bytes`` bytes if no rank sends to, or receives from, more than half of the others,
    and else takes ``Ialltoallv``.
    """
    if collective == "alltoallv":
        return None
    peers = np.array([np.count_nonzero(send_counts), np.count_nonzero(receive_counts)])
    most = int(world.allreduce(peers, "max").max())
    if most == 0 or (collective == "auto" and 2 * most > world.size - 1):
        return None
    forward = world.neighbours(receive_counts > 0, send_counts > 0)
    if collective == "auto" and not _is_faster(world, forward, send_counts, receive_counts, row_bytes):
        world.free(forward)
        return None
    return RankGraphs(forward, world.neighbours(send_counts > 0, receive_counts > 0))


def _is_faster(
    world: World, forward: Neighbours, send_counts: np.ndarray, receive_counts: np.ndarray, row_bytes: int
) -> bool:
    """Return whether the neighbourhood collective takes less time on the slowest rank; the same answer on all ranks.
    Collective.
    """
    world.check_counts(send_counts, receive_counts, "a trial exchange")
    send, received = (
        Segments(Buffer.of(torch.zeros(int(counts.sum()), row_bytes, dtype=torch.uint8)), counts)
        for counts in (send_counts, receive_counts)
    )
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        for over_neighbours, times in seconds.items():
            linked = forward if over_neighbours else None
            pending = world.start_alltoallv(send, received, "a trial exchange", linked)
            world.wait(pending)
            times.append(float(world.allreduce(np.array([pending.seconds]), "max")[0]))
    return statistics.median(seconds[True]) < statistics.median(seconds[False])
