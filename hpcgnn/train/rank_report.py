"""``ranks.json``: seconds, sizes and memory by rank, and the bytes between ranks, for at most 64 blocks of ranks.

The ranks of a larger job are grouped into blocks of consecutive ranks, so the file stays below 150 kB and needs three reductions
of at most 64 x 64 numbers each, at the end of a run. An epoch costs two copies of (P,) counts, without new memory."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from hpcgnn.base.process import peak_memory_bytes
from hpcgnn.base.typed import Count, Finite
from hpcgnn.exchange import BYTES, PHASES
from hpcgnn.exchange.traffic import IMBALANCE, Traffic
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world import Buffer, World

MOST_BLOCKS = 64
_KEPT_EPOCHS = 1000  # means are over the last 1,000 epochs
BREAKDOWN = ("seconds", *PHASES, "other_seconds")
_MEANS = tuple(f"{name}_mean" for name in BREAKDOWN)
COUNTS = ("nodes", "edges", "cut_edges", "rows_sent", "peak_memory_bytes")

_Blocks = Annotated[list[Finite], Meta(min_length=1, max_length=MOST_BLOCKS)]
_Row = Annotated[list[Count], Meta(min_length=1, max_length=MOST_BLOCKS)]


class Ranks(msgspec.Struct, kw_only=True):
    """The content of ``ranks.json``, for B blocks of ranks; docs/reference/metrics.md explains the keys.

    ranks: number of ranks. first_rank: (B,) lowest rank of each block. bytes: (B, B) bytes that block i sent to block j in
    training messages. mean, largest: over the ranks of a block, (B,) by the names in BREAKDOWN (seconds of an epoch) and COUNTS.
    """

    ranks: Annotated[int, Meta(ge=1)]
    first_rank: _Row
    first_epoch: Count
    epochs: Annotated[int, Meta(ge=1)]
    parts_uuid: str
    bytes: Annotated[list[_Row], Meta(min_length=1, max_length=MOST_BLOCKS)]
    mean: dict[str, _Blocks]
    largest: dict[str, _Blocks]

    def __post_init__(self) -> None:
        for figures in (self.mean, self.largest):  # files of earlier versions have no imbalance
            figures.setdefault(IMBALANCE, [0.0] * len(self.first_rank))

    def total(self, name: str) -> int:
        """The sum of one of COUNTS over all ranks."""
        return round(float(np.diff(self.first_rank, append=self.ranks) @ self.mean[name]))

    @property
    def is_whole(self) -> bool:
        """Return whether all its lists have one entry for each block."""
        blocks = len(self.first_rank)
        lists: list[list[Any]] = [self.bytes, *self.bytes, *self.mean.values(), *self.largest.values()]
        has_all = {*BREAKDOWN, *COUNTS} <= self.mean.keys() & self.largest.keys()
        are_right = self.first_rank == first_ranks(self.ranks).tolist()
        return has_all and are_right and all(len(each) == blocks for each in lists)


def first_ranks(num_ranks: int) -> np.ndarray:
    """(B,) int64 lowest rank of each block. Up to :data:`MOST_BLOCKS` ranks have a block each."""
    blocks = min(num_ranks, MOST_BLOCKS)
    return np.arange(blocks, dtype=np.int64) * num_ranks // blocks


class RankReport:
    """The bytes that this rank sends to each other rank in training steps, and its seconds by phase. first_rows: (P,) number of
    rows to each rank in the model's first exchange."""

    def __init__(self, graph: LocalGraph, traffic: Traffic, first_rows: np.ndarray) -> None:
        self._graph, self._traffic, self._rows = graph, traffic, int(first_rows.sum())
        self._sent, self._before = np.zeros_like(traffic.bytes_to), np.zeros_like(traffic.bytes_to)
        self._seconds = np.zeros((_KEPT_EPOCHS, len(BREAKDOWN)))
        self._epochs, self._first_epoch = 0, 0

    def begin_step(self, epoch: int) -> None:
        """Begin a training step, whose messages are counted from here on."""
        np.copyto(self._before, self._traffic.bytes_to)
        if not self._epochs:
            self._first_epoch = epoch

    def end_step(self, seconds: list[float]) -> None:
        """End the step. seconds: values for :data:`BREAKDOWN`."""
        self._sent += self._traffic.bytes_to
        self._sent -= self._before
        self._seconds[self._epochs % _KEPT_EPOCHS] = seconds
        self._epochs += 1

    def gathered(self) -> Ranks | None:
        """The report of all ranks; None if no epoch was trained. Collective."""
        if not self._epochs:
            return None
        world = self._graph.world
        firsts = first_ranks(world.size)
        block = int(np.searchsorted(firsts, world.rank, "right")) - 1
        sent = np.zeros((firsts.size, firsts.size), np.int64)
        sent[block] = np.add.reduceat(self._sent, firsts)
        has_first = 1 < self._epochs <= _KEPT_EPOCHS  # in which code is compiled and memory made
        seconds = self._seconds[int(has_first) : self._epochs].mean(axis=0)
        graph = self._graph
        is_cut = (graph.indices < graph.first) | (graph.indices >= graph.first + graph.num_nodes)
        counts = [graph.num_nodes, graph.indices.size, np.count_nonzero(is_cut), self._rows, peak_memory_bytes()]
        mine = np.array([*seconds, *counts], np.float64)  # in the order of BREAKDOWN and COUNTS
        summed, most = np.zeros((mine.size, firsts.size)), np.full((mine.size, firsts.size), -np.inf)
        summed[:, block] = most[:, block] = mine
        sent = world.allreduce(sent, what="bytes between ranks")
        summed = world.allreduce(summed, what="figures of ranks") / np.diff(firsts, append=world.size)
        most = world.allreduce(most, "max", what="figures of ranks")
        names = (*BREAKDOWN, *COUNTS)
        return Ranks(
            ranks=world.size,
            first_rank=firsts.tolist(),
            first_epoch=self._first_epoch,
            epochs=self._epochs,
            parts_uuid=self._graph.uuid,
            bytes=sent.tolist(),
            mean=dict(zip(names, summed.tolist(), strict=True)),
            largest=dict(zip(names, most.tolist(), strict=True)),
        )


class OverRanks:
    """Reduces the breakdown and the bytes of an epoch over ranks, with ``num_sums`` other numbers, in memory made once."""

    def __init__(self, world: World, num_sums: int) -> None:
        self._world = world
        self._values = [np.empty(len(BREAKDOWN) + len(BYTES) + num_sums) for _ in range(3)]  # mine, maximum and sum
        self._buffers = [Buffer.of(values) for values in self._values]

    def reduce(self, mine: list[float], sums: list[float]) -> tuple[dict[str, Any], list[float]]:
        """Maximum and mean of the breakdown over ranks, and the sum of bytes; and the maximum over ranks of each of ``sums``,
        which are sums over ranks, whose last bit MPI does not guarantee to be the same on all ranks. Collective."""
        values, largest, total = self._values
        values[:] = [*mine, *sums]
        given, *results = self._buffers
        start, what = self._world.start_allreduce, "the times of the epoch"
        for pending in [start(given, result, op, what) for op, result in zip(("max", "sum"), results, strict=True)]:
            self._world.wait(pending)
        record: dict[str, Any] = dict(zip(BREAKDOWN, largest.tolist(), strict=False))
        record |= zip(_MEANS, (total / self._world.size).tolist(), strict=False)
        moved = total[len(mine) - len(BYTES) : len(mine)].astype(np.int64).tolist()
        return record | dict(zip(BYTES, moved, strict=True)), largest[len(mine) :].tolist()
