"""A split of a graph's edges, and pairs of nodes without an edge. All that is drawn is a function of seeds and original ids.

Shapes: n owned nodes, h halo nodes, e edges that end at owned nodes, k negatives a link, M nodes in a pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from hpcgnn.base.arguments import check_type
from hpcgnn.base.host import index_array
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, keyed
from hpcgnn.nn.halo import edge_ids, edge_matrix
from hpcgnn.train.config import LinkConfig
from hpcgnn.world import raise_on_all_ranks

# Each stands where a dropout's key has its layer, so that no mask shares its numbers with these draws.
_SPLIT, _POOL, _PAIRS = (int.from_bytes(word, "big") for word in (b"split", b"pool", b"pairs"))
# First word of the keys of evaluations, so that no training epoch draws the same random numbers.
EVALUATION = int.from_bytes(b"judge", "big")
_ATTEMPTS = 4  # draws of a source that is no in-neighbour; if all fail, the negative is left out


@dataclass(frozen=True)
class LinkSplit:
    """A graph whose links are split for link prediction.

    The three graphs have all nodes and some of the edges. Both directions of an edge are in the same graph. Self-loops are
    not links: they are all in ``train``.

    Attributes:
        config: the settings of the split.
        graph: this rank's part with all edges.
        train: this rank's part with the edges for training; build the model for it.
        validation: this rank's part with the links held out for validation.
        test: this rank's part with the links held out for testing.
    """

    config: LinkConfig
    graph: LocalGraph
    train: LocalGraph
    validation: LocalGraph
    test: LocalGraph


def split_links(graph: LocalGraph, config: LinkConfig | None = None) -> LinkSplit:
    """Hold out links of a graph for validation and testing. Collective.

    The set of a link is a function of ``link_seed`` and the original ids of its two ends, so the split is the same for any
    number of ranks, and the shares are met on average.

    Args:
        graph: this rank's part, as ``hpcgnn.load`` returns it.
        config: the shares, the seed and the settings of negative sampling; None: the defaults.

    Returns:
        The split, for ``hpcgnn.Trainer``; build the model for its ``train``.

    Raises:
        HpcgnnError: on every rank, for settings that are not allowed.
    """
    check_type("graph", graph, LocalGraph)
    config = LinkConfig() if config is None else config
    with raise_on_all_ranks(graph.world, "split the links"):
        check_type("config", config, LinkConfig)
        config.check()
    source, target = _original_ends(graph)
    pairs = edge_ids(torch.maximum(source, target), torch.minimum(source, target))
    key = keyed.derive_key(config.link_seed, 0, _SPLIT)
    draws = keyed.draws(keyed.row_hashes(key, index_array(pairs)), np.zeros(1, np.uint32))
    is_loop = index_array(source == target)
    held_out = [keyed.threshold(share) for share in np.cumsum(config.link_split)]
    side = np.where(is_loop, 2, np.searchsorted(held_out, draws, side="right"))
    validation, test, train = (graph.with_edges(side == each) for each in range(3))
    return LinkSplit(config, graph, train, validation, test)


def _original_ends(graph: LocalGraph) -> tuple[torch.Tensor, torch.Tensor]:
    """(e,) int64 original ids of the edges' sources and targets. Collective."""
    original = torch.cat((graph.original_ids, graph.halo_ids))
    source, target = original[graph.local_edge_index()]  # which nobody else may need: 16 bytes an edge
    return source, target


@dataclass(frozen=True)
class Links:
    """The links that end at owned nodes. csr: (n, n + h), from extended rows (:mod:`hpcgnn.nn.halo`). ids: (links,) int64, made
    of the original ids of both ends."""

    csr: Csr
    ids: np.ndarray


def links_of(graph: LocalGraph) -> Links:
    """All edges of ``graph`` but self-loops. Collective."""
    source, target = _original_ends(graph)
    is_link = source != target
    shape = (graph.num_nodes, graph.num_nodes + graph.halo_positions.size)
    csr, order = edge_matrix(graph.local_edge_index()[:, is_link], shape, check=False)
    return Links(csr.to(graph.device.torch_device), index_array(edge_ids(target, source)[is_link][order]))


@dataclass(frozen=True)
class Negatives:
    """Negative pairs, whose sources are the M nodes of a pool that is the same on all ranks. pairs: (n, M) matrix of the pairs
    that are no links. owned: (m,) int64 owned nodes in the pool. slots: (m,) int64 index of each of them in the pool."""

    pairs: Csr
    owned: torch.Tensor
    slots: torch.Tensor


class NegativeSampler:
    """Draws, for each link into an owned node, sources from which no edge of ``graph`` comes. graph: with all edges."""

    def __init__(self, graph: LocalGraph, config: LinkConfig) -> None:
        self._graph, self._config = graph, config

    @cached_property
    def _known(self) -> np.ndarray:
        """(e + n,) int64 keys, ascending, of the pairs that are edges, and of each owned node with itself."""
        graph = self._graph
        nodes = np.arange(graph.num_nodes)
        pairs = self._pair(index_array(graph.local_edge_index()[1]), graph.indices), self._pair(nodes, self._positions)
        return np.sort(np.concatenate(pairs))

    @cached_property
    def _positions(self) -> np.ndarray:
        """(n,) int64 of the owned nodes in the file."""
        graph = self._graph
        nodes = np.arange(graph.num_nodes) if graph.order.nodes is None else index_array(graph.order.nodes)
        return graph.first + nodes

    @cached_property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """(n,) int64 original ids of owned nodes, ascending, and (n,) int64 local index of each."""
        ids = index_array(self._graph.original_ids)
        order = np.argsort(ids)
        return ids[order], order

    def _pair(self, target: np.ndarray, position: np.ndarray) -> np.ndarray:
        return target * self._graph.meta.num_nodes + position

    def draw(self, links: Links, *words: int) -> Negatives:
        """Draw negative pairs for ``links``, keyed by ``words``, such as seed and epoch, and by original ids. Collective."""
        pool = keyed.row_hashes(keyed.derive_key(*words, _POOL), np.arange(self._config.negative_pool))
        pool = (pool % np.uint64(self._graph.meta.num_nodes)).astype(np.int64)
        owned, slots = self._owned(pool)
        positions = np.full(pool.size, -1)
        positions[slots] = self._positions[owned]
        positions = self._graph.world.allreduce(positions, "max")
        target = np.repeat(index_array(links.csr.entry_rows()), self._config.negatives)
        slot = self._slots(links, target, positions, keyed.derive_key(*words, _PAIRS))
        is_drawn = slot >= 0
        lengths = np.bincount(target[is_drawn], minlength=self._graph.num_nodes)
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        pairs = Csr(indptr, slot[is_drawn].astype(np.int32), pool.size, check=False)
        torch_device = self._graph.device.torch_device
        return Negatives(
            pairs.to(torch_device), torch.from_numpy(owned).to(torch_device), torch.from_numpy(slots).to(torch_device)
        )

    def _owned(self, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The owned nodes that are in the pool, and their slots."""
        ids, order = self._by_id
        found = np.searchsorted(ids, pool)
        is_owned = np.flatnonzero(ids[np.minimum(found, ids.size - 1)] == pool) if ids.size else np.zeros(0, np.int64)
        return order[found[is_owned]], is_owned

    def _slots(self, links: Links, target: np.ndarray, positions: np.ndarray, key: int) -> np.ndarray:
        """(links * k,) slots of the pool; -1 where no attempt found a pair that is no edge."""
        hashes = np.repeat(keyed.row_hashes(key, links.ids), self._config.negatives)
        columns = np.tile(np.arange(self._config.negatives), links.ids.size)
        slot, open_ = np.full(target.size, -1), np.arange(target.size)
        for attempt in range(_ATTEMPTS):
            draws = keyed.draws(hashes[open_], columns[open_] + attempt * self._config.negatives)
            tried = draws.astype(np.int64) % positions.size
            pairs = self._pair(target[open_], positions[tried])
            found = self._known[np.minimum(np.searchsorted(self._known, pairs), self._known.size - 1)]
            is_free = found != pairs
            slot[open_[is_free]] = tried[is_free]
            open_ = open_[~is_free]
        return slot


class _PoolRows(torch.autograd.Function):
    """The rows of a pool on all ranks, as a sum. In backward, gradients are summed, and each rank takes those of its own rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, negatives: Negatives, messages: Messages) -> torch.Tensor:
        ctx.negatives, ctx.messages, ctx.num_rows = negatives, messages, x.shape[0]
        rows = x.new_zeros(negatives.pairs.num_cols, x.shape[1])
        rows[negatives.slots] = x[negatives.owned]
        messages.world.meet()
        with messages.timings.measure("synchronisation_seconds"):
            return messages.world.allreduce(rows, what="a pool of nodes")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.messages.world.meet()
        with ctx.messages.timings.measure("synchronisation_seconds"):
            summed = ctx.messages.world.allreduce(gradients[0], what="gradients of a pool of nodes")
        rows = summed.new_zeros(ctx.num_rows, summed.shape[1])
        return rows.index_add_(0, ctx.negatives.owned, summed[ctx.negatives.slots]), None, None


def pool_rows(x: torch.Tensor, negatives: Negatives, messages: Messages) -> torch.Tensor:
    """The (M, F) rows of all nodes of a pool, on all ranks, from the (n, F) rows ``x`` of owned nodes; they are never quantized.
    Takes O(M F) memory and bytes. Collective, also backward."""
    return _PoolRows.apply(x, negatives, messages)
