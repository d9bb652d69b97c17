"""The quality of a partition, measured from ``parts.h5``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.partition.slabs import edge_chunks
from hpcgnn.world import World, raise_on_all_ranks


@dataclass(frozen=True)
class PartQuality:
    """Counts of a partition.

    cut_edges: stored edges between parts. node_balance, edge_balance, train_balance: the largest part's count divided by the
    mean, 1.0 at best, and if the graph has none. halo_total, halo_max: sum and maximum over parts of the halo's size, the
    number of distinct sources on other parts. replication: the mean number of parts in which a node has a row, owned or halo.
    """

    num_parts: int
    num_nodes: int
    num_edges: int
    cut_edges: int
    node_balance: float
    edge_balance: float
    train_balance: float
    halo_total: int
    halo_max: int
    replication: float
    empty_parts: int

    @property
    def cut_fraction(self) -> float:
        """Cut edges divided by all edges, from 0 to 1."""
        return self.cut_edges / max(self.num_edges, 1)


@dataclass(frozen=True)
class PartitionReport:
    """A report about a finished partition. seconds: by step, and ``total``. peak_memory_bytes: the largest resident memory
    of any rank, or of a process that a rank has started."""

    method: str
    reason: str
    objective: str
    balance: tuple[str, ...]
    seed: int
    ranks_per_node: int
    ranks: int
    quality: PartQuality
    seconds: dict[str, float]
    peak_memory_bytes: int
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The report as one JSON object, flat except for ``seconds``."""
        values = asdict(self)
        return values.pop("quality") | {"cut_fraction": self.quality.cut_fraction} | values


def measure(world: World, parts_path: str) -> PartQuality:
    """Measure ``parts.h5``. Rank r reads parts r, r + size, ... in chunks, in memory of one bit a node. Collective."""
    with raise_on_all_ranks(world, "measure the parts"), PartsFile(parts_path) as file:
        meta, num_parts = file.meta, file.num_parts
        nodes = np.diff(file.node_offsets)
        edges, train, halo, cut = (np.zeros(num_parts, dtype=np.int64) for _ in range(4))
        for part in range(world.rank, num_parts, world.size):
            if nodes[part]:
                edges[part], cut[part], halo[part] = _edges_of(file, part)
                mask = file.mask("train_mask", *file.part(part))
                train[part] = 0 if mask is None else np.count_nonzero(mask)
    edges, train, halo, cut = (world.allreduce(counts) for counts in (edges, train, halo, cut))
    return PartQuality(
        num_parts=num_parts,
        num_nodes=meta.num_nodes,
        num_edges=meta.num_edges,
        cut_edges=int(cut.sum()),
        node_balance=_max_over_mean(nodes),
        edge_balance=_max_over_mean(edges),
        train_balance=_max_over_mean(train),
        halo_total=int(halo.sum()),
        halo_max=int(halo.max()),
        replication=1 + int(halo.sum()) / max(meta.num_nodes, 1),
        empty_parts=int(np.count_nonzero(nodes == 0)),
    )


def _edges_of(file: PartsFile, part: int) -> tuple[int, int, int]:
    """``(in-edges, cut in-edges, distinct sources on other parts)`` of one part."""
    first, last = file.part(part)
    seen = np.zeros(-(-file.meta.num_nodes // 8), dtype=np.uint8)
    edges = cut = halo = 0
    for chunk in edge_chunks(file, first, last):
        edges += chunk.sources.size
        more_cut, more_halo = mark_remote(chunk.sources, first, last, seen)
        cut, halo = cut + more_cut, halo + more_halo
    return edges, cut, halo


def _max_over_mean(counts: np.ndarray) -> float:
    return float(counts.max() / counts.mean()) if counts.any() else 1.0


@njit(cache=True)
def mark_remote(sources: np.ndarray, first: int, last: int, seen: np.ndarray) -> tuple[int, int]:
    """``(cut edges, sources not seen before)`` among edges into nodes ``[first, last)``. ``seen`` (ceil(N/8),) has a bit for
    each node; the bits of sources outside the range are set."""
    cut = 0
    new = 0
    for source in sources:
        if first <= source < last:
            continue
        cut += 1
        bit = np.uint8(1 << (source & 7))
        if not seen[source >> 3] & bit:
            seen[source >> 3] |= bit
            new += 1
    return cut, new
