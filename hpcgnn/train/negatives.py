"""Negative sampling: triples that are no edges, made from links by another node at one end.

Everything is drawn as a function of seeds and original ids. Shapes: n owned nodes, k negatives a link, M nodes in a pool;
others as in :mod:`hpcgnn.train.links`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, keyed
from hpcgnn.kernels.autograd import Gradients, recorded
from hpcgnn.plan.plan import offsets_of
from hpcgnn.plan.relations import RelationRows
from hpcgnn.train.config import LinkConfig
from hpcgnn.train.links import Links, Pairs, found_in, positions_of, types_of

# Each stands where a dropout's key has its layer, so that no mask shares its numbers with these draws.
_POOL, _PAIRS = (int.from_bytes(word, "big") for word in (b"pool", b"pairs"))
# First word of the keys of evaluations, so that no training epoch draws the same random numbers.
EVALUATION = int.from_bytes(b"judge", "big")
_ATTEMPTS = 4  # draws of another end that makes no edge; if all fail, the negative is left out


@dataclass(frozen=True)
class Negatives:
    """Negatives, whose drawn ends are the M nodes of a pool that is the same on all ranks. of_targets: (p, M) matrix of drawn
    sources for the pairs of targets. of_sources: (p, M) of drawn targets for the pairs of sources; None in a graph without
    types, where only sources are drawn. owned: (m,) int64 owned nodes in the pool. slots: (m,) int64 place of each in it."""

    of_targets: Csr
    of_sources: Csr | None
    owned: torch.Tensor
    slots: torch.Tensor


class KnownEdges:
    """The edges of ``graph`` as sorted keys, to look triples up. Nodes are given by their positions in the file."""

    def __init__(self, graph: LocalGraph) -> None:
        self._graph = graph
        rows = RelationRows.of(types_of(graph), graph.destinations, graph.num_nodes, max(graph.meta.num_edge_types, 1))
        self._pairs = rows.relation * graph.num_nodes + rows.node  # ascending
        self._edges = np.sort(rows.rows.of_edge * graph.meta.num_nodes + graph.indices)

    def have(self, source: np.ndarray, relation: np.ndarray, target: np.ndarray) -> np.ndarray:
        """(m,) bool, whether there are such edges; the targets must be owned."""
        pair, is_pair = found_in(self._pairs, relation * self._graph.num_nodes + (target - self._graph.first))
        return is_pair & found_in(self._edges, pair * self._graph.meta.num_nodes + source)[1]

    def have_anywhere(self, source: np.ndarray, relation: np.ndarray, target: np.ndarray) -> np.ndarray:
        """As :meth:`have`, for targets of any rank, whose owners answer. Collective."""
        graph = self._graph
        order, counts = graph.by_owner(target)
        asked, counts = graph.world.alltoallv(np.stack((source, relation, target), axis=1)[order], counts)
        answers, _ = graph.world.alltoallv(self.have(*asked.T), counts)
        found = np.empty_like(answers)
        found[order] = answers
        return found


class NegativeSampler:
    """Draws, for each link into an owned node, triples with the same relation that are no edges of ``graph``. In a graph without
    types the source is another one; with types, the source or the target is, with equal probability, and may be the other end:
    the ranks of links compare with such triples.
    Where nodes have types, a drawn node has the type of the node that it replaces (Hu et al., 2020: ogbl-biokg). relations: (R,)
    bool, the types of edges that are links; None for all."""

    def __init__(self, graph: LocalGraph, config: LinkConfig, relations: np.ndarray | None = None) -> None:
        self._graph, self._config = graph, config
        self._kinds_of_ends = graph.meta.edge_type_ends
        offsets = graph.meta.node_type_offsets
        kinds = np.unique(self._kinds_of_ends if relations is None else self._kinds_of_ends[:, relations])
        # Slot s of the pool is a node of the K kinds' number s % K, so that small types have as many slots as large ones.
        self._kinds = kinds[np.diff(offsets)[kinds] > 0]
        self._first, self._count = offsets[self._kinds], np.diff(offsets)[self._kinds]
        self._pool_size = max(config.negative_pool, self._kinds.size)
        self._known: KnownEdges | None = None

    @cached_property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """(n,) int64 original ids of owned nodes, ascending, and (n,) int64 local index of each."""
        ids = index_array(self._graph.original_ids)
        order = np.argsort(ids)
        return ids[order], order

    def pool(self, *words: int) -> tuple[np.ndarray, np.ndarray]:
        """The owned nodes among ``negative_pool`` nodes that are drawn by the key ``words``, and their slots in the pool."""
        slots = np.arange(self._pool_size)
        hashes, kind = keyed.row_hashes(keyed.derive_key(*words, _POOL), slots), slots % self._kinds.size
        pool = self._first[kind] + (hashes % self._count[kind].astype(np.uint64)).astype(np.int64)
        ids, order = self._by_id
        slots = np.flatnonzero(found_in(ids, pool)[1])
        return order[np.searchsorted(ids, pool[slots])], slots

    def draw(self, links: Links, *words: int) -> Negatives:
        """Draw negatives for ``links``, keyed by ``words``, such as seed and epoch, and by original ids. Collective.
        links: of a graph with the nodes of ``graph``."""
        owned, slots = self.pool(*words)
        positions = np.full(self._pool_size, -1)
        positions[slots] = positions_of(self._graph)[owned]
        positions = self._graph.world.allreduce(positions, "max")
        torch_device = self._graph.device.torch_device
        number, is_target, slot = self._slots(links, positions, keyed.derive_key(*words, _PAIRS))

        def matrix(pairs: Pairs, chosen: np.ndarray) -> Csr:
            pair, drawn = pairs.of_link[number[chosen]], slot[chosen].astype(np.int32)
            order = np.argsort(pair, kind="stable")
            indptr = offsets_of(np.bincount(pair, minlength=pairs.relation.numel()))
            return Csr(indptr, drawn[order], positions.size, check=False).to(torch_device)

        of_sources = matrix(links.sources, is_target) if self._graph.meta.num_edge_types else None
        at = (torch.from_numpy(each).to(torch_device) for each in (owned, slots))
        return Negatives(matrix(links.targets, ~is_target), of_sources, *at)

    def _slots(self, links: Links, positions: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The link of each negative, whether its target is drawn, and the slot of the pool; without those for which no attempt
        found a triple that is no edge. Collective."""
        k = self._config.negatives
        number, columns = np.repeat(np.arange(links.ids.size), k), np.tile(np.arange(k), links.ids.size)
        hashes = keyed.row_hashes(key, links.ids)[number]
        is_target, has_types = np.zeros(number.size, bool), self._graph.meta.num_edge_types > 0
        if has_types:
            is_target = keyed.draws(hashes, columns + _ATTEMPTS * k) >> 31 == 1
        kinds = np.where(is_target, *self._kinds_of_ends[::-1, links.triples[1, number]])
        kinds = np.searchsorted(self._kinds, kinds)
        slot, open_ = np.full(number.size, -1), np.arange(number.size)
        if self._known is None:  # not a cached_property, for whose lock ranks that are threads would wait
            self._known = KnownEdges(self._graph)
        # Only in a graph with types may a target belong to another rank.
        are_known = self._known.have_anywhere if has_types else self._known.have
        for attempt in range(_ATTEMPTS):
            tried = self._ends(hashes[open_], columns[open_] + attempt * k, kinds[open_])
            source, relation, target = links.triples[:, number[open_]]
            source = np.where(is_target[open_], source, positions[tried])
            target = np.where(is_target[open_], positions[tried], target)
            is_free = (has_types | (source != target)) & ~are_known(source, relation, target)
            slot[open_[is_free]] = tried[is_free]
            open_ = open_[~is_free]
        drawn = slot >= 0
        return number[drawn], is_target[drawn], slot[drawn]

    def _ends(self, hashes: np.ndarray, columns: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """(m,) slots of the pool, drawn for links with these hashes, of nodes of ``kinds``, places in those of the pool. The one
        place that says which nodes may be drawn."""
        slots = -((kinds - self._pool_size) // self._kinds.size)  # of each kind, rounded up
        return kinds + self._kinds.size * (keyed.draws(hashes, columns).astype(np.int64) % slots)


def pool_rows(x: torch.Tensor, negatives: Negatives, messages: Messages) -> torch.Tensor:
    """The (M, F) rows of all nodes of a pool, on all ranks, from the (n, F) rows ``x`` of owned nodes; they are never quantized.
    Takes O(M F) memory and bytes. In backward, gradients are summed, and each rank takes those of its own rows. Collective, also
    backward."""
    num_rows = x.shape[0]

    def summed(rows: torch.Tensor, what: str) -> torch.Tensor:
        messages.world.meet()
        with messages.timings.measure("synchronisation_seconds"):
            return messages.world.allreduce(rows, what=what)

    def run(_: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.new_zeros(negatives.of_targets.num_cols, x.shape[1])
        rows[negatives.slots] = x[negatives.owned]
        return summed(rows, "a pool of nodes")

    def back(_: Any, dy: torch.Tensor) -> Gradients:
        of_pool = summed(dy, "gradients of a pool of nodes")
        rows = of_pool.new_zeros(num_rows, of_pool.shape[1])
        return (rows.index_add_(0, negatives.owned, of_pool[negatives.slots]),)

    return recorded(run, back, x)
