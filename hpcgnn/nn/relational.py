"""Attention in graphs with types of edges and of nodes: R-GAT and HGT.

The rows of nodes travel over the halo as they are, once for all types of edges. An edge of type r from j to i needs the product
of x_j with weights of r. It is computed where the edge ends, and only once for each *pair* (j, r) of a source and a type that
occurs among a rank's edges. Pairs are ordered by type, so the rows of a type are contiguous, as for R-GCN's sums
(:mod:`hpcgnn.plan.relations`); there are at most as many as edges, and many fewer than all nodes times all types.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, p pairs of a source and a type, q pairs of an owned node
and a type of its in-edges, R types of edges, T types of nodes, H heads, C columns of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, edge_softmax, keyed, sddmm, spmm
from hpcgnn.kernels.autograd import layer_product
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.attention import NEGATIVE_SLOPE, AttentionLayer, Heads, WeighingLayer, parts
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.grouped import block_products
from hpcgnn.nn.halo import Block, cut, edge_ids, picks
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import KeyedDropout, matrices, xavier
from hpcgnn.nn.linear import Compute
from hpcgnn.nn.pieces import HaloPieces
from hpcgnn.plan.plan import offsets_of
from hpcgnn.plan.relations import RelationRows

_OF_TYPES = keyed.GOLDEN_64 - (1 << 64)  # odd, so multiples of it differ: these distinguish edges of different types


@dataclass(frozen=True)
class TargetPairs:
    """The q pairs of an owned node and a type of its in-edges. nodes: (q, n), which gathers the rows of nodes for pairs ordered
    by type. sizes: number of pairs of each type. by_node: (q, q), which puts them into the order of (node, type). csr: (q, p)
    structure with rows in that order; its entries are those of :attr:`TypedEdges.csr`."""

    nodes: Csr
    sizes: tuple[int, ...]
    by_node: Csr
    csr: Csr

    @cached_property
    def merge(self) -> tuple[Csr, np.ndarray]:
        """(n, q) matrix of ones, the pairs of each node in the order of (node, type); and the (q,) types of pairs in it."""
        order = self.by_node.indices.long()
        types = np.repeat(np.arange(len(self.sizes)), self.sizes)[index_array(order)]
        return picks(self.nodes.indices[order], self.nodes.num_cols).transpose(), types


@dataclass(frozen=True)
class TypedEdges:
    """The e edges that end at owned nodes, from p pairs of a source and a type.

    sources: (p, m), which gathers the rows of sources for pairs ordered by type. types: (p, R), which gathers a row of each
    pair's type. sizes: number of pairs of each type. csr: (n, p) structure, whose entries in a row are ordered by type.
    original_ids: (m,) int64 ids of extended rows. attr: (e, D) features of edges in the order of entries, or None. targets: see
    :class:`TargetPairs`, or None. nodes: the owned nodes by type, or None. within: whether a softmax is over the edges of a
    target and a type, and not over those of a node.
    """

    sources: Csr
    types: Csr
    sizes: tuple[int, ...]
    csr: Csr
    original_ids: torch.Tensor
    attr: torch.Tensor | None
    targets: TargetPairs | None = None
    nodes: TypedNodes | None = None
    within: bool = False

    @property
    def ends(self) -> Csr:
        """(q, p) structure of the edges by pairs of a target and a type, or that by nodes without such pairs."""
        return self.csr if self.targets is None else self.targets.csr

    @property
    def softmaxes(self) -> Csr:
        """The structure whose rows are those of a softmax."""
        return self.ends if self.within else self.csr

    def cut(
        self, piece_of: torch.Tensor, number: torch.Tensor, sizes: Sequence[int], *, keyed: bool
    ) -> list[TypedBlock]:
        """See :class:`hpcgnn.nn.pieces.Edges`. A pair of a source and a type is in the piece of the source."""
        sources, types, relations = self.sources.indices.long(), self.types.indices.long(), len(self.sizes)
        of_pair = piece_of[sources]
        order, counts = torch.argsort(of_pair, stable=True), torch.bincount(of_pair, minlength=len(sizes)).tolist()
        pairs = order.split(counts)
        place = torch.empty_like(order)
        for mine in pairs:
            place[mine] = torch.arange(mine.numel(), device=order.device)
        ids = self.ids if keyed else None
        blocks = cut(self.softmaxes, (of_pair, place), counts, ids, self.attr, None if self.within else self.ends)
        return [
            TypedBlock(
                **vars(block),
                sources=picks(number[sources[mine]], size),
                types=picks(types[mine], relations),
                sizes=tuple(torch.bincount(types[mine], minlength=relations).tolist()),
            )
            for block, mine, size in zip(blocks, pairs, sizes, strict=True)
        ]

    @cached_property
    def ids(self) -> torch.Tensor:
        """(e,) int64 hash of the original ids of each edge's ends and its type, as in :class:`hpcgnn.nn.halo.AttentionEdges`."""
        pairs, sources = self.csr.indices.long(), self.original_ids[self.sources.indices.long()]
        types = self.types.indices[pairs].long()
        return edge_ids(self.original_ids[self.csr.entry_rows()], sources[pairs]) ^ (types * _OF_TYPES)

    def row_squares(self, layer: WeighingLayer) -> Callable[[], np.ndarray | None]:
        """For an aggregator's attribute of this name: (m,) sums of squared weights of ``layer``, by extended row."""

        def of_sources() -> np.ndarray | None:
            squares = layer.row_squares(self.csr)
            if squares is None:
                return None
            return np.bincount(index_array(self.sources.indices), squares, minlength=self.sources.num_cols)

        return of_sources


@dataclass(frozen=True)
class TypedBlock(Block):
    """The edges of a piece, from p pairs of one of its b rows and a type. sources: (p, b), types: (p, R), sizes: as in
    :class:`TypedEdges`."""

    sources: Csr
    types: Csr
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TypedNodes:
    """The n owned nodes by type. types: (n, T), which gathers a row of each node's type. sizes: number of nodes of each type.
    by_type: (n, n), which orders rows by type; None if they are in this order. sources: for each type of edges, the type of the
    nodes at which it begins, as an (R, T) matrix that gathers their rows."""

    types: Csr
    sizes: tuple[int, ...]
    by_type: Csr | None
    sources: Csr

    @classmethod
    def of(cls, graph: LocalGraph) -> TypedNodes:
        """Those of a graph; without types of nodes, all are of one type. Not collective."""
        meta, torch_device = graph.meta, graph.device.torch_device
        count = max(len(meta.node_types), 1)
        types = graph.node_type
        order = torch.argsort(types, stable=True)
        return cls(
            picks(types, count).to(torch_device),
            tuple(torch.bincount(types, minlength=count).tolist()),
            None if bool((order.diff() > 0).all()) else picks(order, graph.num_nodes).to(torch_device),
            picks(torch.from_numpy(meta.edge_type_ends[0].copy()), count).to(torch_device),
        )

    def product(
        self, x: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor, compute: Compute, backend: str
    ) -> torch.Tensor:
        """(n, F') products of the rows of x (n, F) with weights (T, F, F') and biases (T, F') of their types."""
        rows = x if self.by_type is None else spmm(self.by_type, x, backend=backend)
        y = products(rows, self.sizes, weights, compute, backend)
        y = y if self.by_type is None else spmm(self.by_type.transpose(), y, backend=backend)
        return y + spmm(self.types, biases, backend=backend)


def typed_edges(
    graph: LocalGraph,
    *,
    targets: bool = False,
    nodes: bool = False,
    within: bool = False,
    attr_type: torch.dtype | None = None,
) -> TypedEdges:
    """The edges of ``graph`` by pairs of a source and a type, in the graph's order. Collective.

    Args:
        graph: this rank's part.
        targets, nodes: with :attr:`TypedEdges.targets`; with :attr:`TypedEdges.nodes`.
        within: see :class:`TypedEdges`.
        attr_type: type of the features of edges, if the graph has any; None leaves them out.

    Raises:
        HpcgnnError: on every rank, for a graph without types of edges.
    """
    types, torch_device = index_array(graph.needed_edge_type()), graph.device.torch_device
    sources, destinations = (index_array(ends) for ends in graph.local_edge_index())
    original = torch.cat((graph.original_ids, graph.halo_ids))
    attr = None if attr_type is None or graph.edge_attr is None else graph.edge_attr
    of_nodes = TypedNodes.of(graph) if nodes else None
    number, count = graph.meta.num_edge_types, graph.num_nodes
    order = np.lexsort((types, destinations))
    pairs = RelationRows.of(types, sources, original.numel(), number)
    entries = torch.from_numpy(pairs.rows.of_edge[order].astype(np.int32))

    def matrix(edges: np.ndarray) -> Csr:
        return Csr(torch.from_numpy(offsets_of(edges)), entries, pairs.rows.count, check=False).to(torch_device)

    of_targets = None
    if targets:
        ends = RelationRows.of(types, destinations, count, number)
        by_node = np.argsort(ends.node, kind="stable")
        of_targets = TargetPairs(
            picks(torch.from_numpy(ends.node), count).to(torch_device),
            tuple(np.diff(ends.offsets).tolist()),
            picks(torch.from_numpy(by_node), by_node.size).to(torch_device),
            matrix(ends.edges[by_node]),
        )
    return TypedEdges(
        sources=picks(torch.from_numpy(pairs.node), original.numel()).to(torch_device),
        types=picks(torch.from_numpy(pairs.relation), number).to(torch_device),
        sizes=tuple(np.diff(pairs.offsets).tolist()),
        csr=matrix(np.bincount(destinations, minlength=count)),
        original_ids=original.to(torch_device),
        attr=None if attr is None else attr[torch.from_numpy(order).to(attr.device)].to(torch_device, attr_type),
        targets=of_targets,
        nodes=of_nodes,
        within=within,
    )


def products(
    rows: torch.Tensor, sizes: tuple[int, ...], weights: torch.Tensor, compute: Compute, backend: str
) -> torch.Tensor:
    """(p, F') products of the rows (p, F) of each type, ``sizes`` of them in turn, with the type's weights (R, F, F')."""
    return block_products(rows, weights[:, None], sizes, compute, backend)


def _of_values(layer: RGATLayer | HGTLayer) -> Compute:
    """The arithmetic of values. What is made again in backward, piece by piece, is made of floats."""
    is_cut = isinstance(layer.over, HaloPieces)
    return FLOAT32 if is_cut and isinstance(layer.compute, Int8) else layer.compute


class RGATLayer(AttentionLayer):
    """R-GAT (Busbridge et al. 2019): ``sum_{j, r} alpha_ijr x_j W_r + b``, with the softmax alpha of the scores
    ``LeakyReLU(x_i W_r Q + x_j W_r K + e_ijr W_e E)`` over the in-edges (j, r) of i; PyG's ``RGATConv`` with additive
    self-attention. The last term is there if edges have features e.

    (n, F_in) features to (n, H*C), or (n, C) with averaged heads. Its call is collective, forward and backward. For gradients,
    an edge keeps 2 H numbers (PyG's layer also keeps x_i, x_j and a copy of W_r for each edge), and a pair of a source and a type
    F_in + H*C.

    over: the aggregator of extended rows, or the halo in pieces. edges: with targets, which say whether the softmax is over the
    in-edges of each type by itself. bases: with B > 0, ``W_r = sum_b a_rb V_b``.
    """

    def __init__(
        self,
        in_width: int,
        heads: Heads,
        over: Aggregator | HaloPieces,
        edges: TypedEdges,
        drops: tuple[KeyedDropout, ...],
        *,
        bases: int = 0,
        compute: Compute = "float32",
    ) -> None:
        super().__init__(heads, parts(over), drops, compute)
        self.over, self.edges, width = over, edges, heads.count * heads.width
        if isinstance(over, Aggregator):
            over.row_squares = edges.row_squares(self)
        self.weight = matrices(bases or len(edges.sizes), in_width, width)
        self.mix = xavier(len(edges.sizes), bases) if bases else None
        self.attend_target, self.attend_source = xavier(width, heads.count), xavier(width, heads.count)
        self.weight_edge = self.attend_edge = None
        if edges.attr is not None:
            self.weight_edge, self.attend_edge = xavier(edges.attr.shape[1], width), xavier(width, heads.count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges, backend = self.edges, self.backend
        weights = self.weight if self.mix is None else torch.tensordot(self.mix, self.weight, 1)
        of_edges: tuple[torch.Tensor, ...] = ()
        if self.weight_edge is not None and self.attend_edge is not None:
            of_edges = (self.weight_edge @ self.attend_edge,)
        if isinstance(self.over, HaloPieces):
            target = self._target_scores(x, weights)
            given = x, target, weights, self.attend_source, *of_edges
            if edges.targets is None or not edges.within:
                return self.in_pieces(self.over, self._sources, *given)
            sums = self.piecewise(self.over, self._sources)(x, target, None, *given[2:])
            return self.joined(spmm(edges.targets.merge[0], sums, backend=backend))
        under_way = self.over.begin(x)
        target = self._target_scores(x, weights)  # while rows travel
        scores, values = self._sources(edges, target, under_way.finish(), weights, self.attend_source, *of_edges)
        alpha = self.kept(edge_softmax(edges.softmaxes, scores, backend))
        return self.joined(self.spmm(edges.csr, values, self.drops[0](alpha), backend=backend))

    def _target_scores(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(q, H) terms of the owned nodes in the scores of their in-edges, by (node, type)."""
        targets, backend = self.edges.targets, self.backend
        assert targets is not None
        rows, seen = spmm(targets.nodes, x, backend=backend), weights @ self.attend_target
        by_type = products(rows, targets.sizes, seen, FLOAT32, backend)
        return spmm(targets.by_node, by_type, backend=backend)

    def _sources(
        self,
        edges: TypedEdges | TypedBlock,
        target: torch.Tensor,
        rows: torch.Tensor,
        weights: torch.Tensor,
        attend: torch.Tensor,
        *of_edges: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(e, H) scores and (p, H*C) rows of sources, from the terms (q, H) of destinations and rows of nodes."""
        backend = self.backend
        pairs = spmm(edges.sources, rows, backend=backend)
        values = products(pairs, edges.sizes, weights, _of_values(self), backend)
        scores = sddmm(edges.ends, target, layer_product(values, attend, backend=backend), "add", backend=backend)
        for each in of_edges:
            assert edges.attr is not None
            scores = layer_product(edges.attr, each, plus=scores, backend=backend)
        return F.leaky_relu(scores, NEGATIVE_SLOPE, inplace=True), values


class HGTLayer(WeighingLayer):
    """The heterogeneous graph transformer (Hu et al. 2020), PyG's ``HGTConv``. With t(i) the type of node i, for each head

        ``z_i = sum_{j, r} alpha_ijr v_j M_r``, with the softmax alpha of ``p_r q_i · k_j A_r / sqrt(C)`` over in-edges (j, r),

    where ``k, q, v = x K_t + b, ...`` have weights of the node's type; and the heads together give
    ``(1 - g_t) x_i + g_t (gelu(z_i) W_t + b_t)`` with ``g_t = sigmoid(skip_t)``, as wide as x.

    (n, F) rows to (n, F) with F = H*C. Its call is collective, forward and backward. A type of edges begins at one type of nodes,
    so ``K_t A_r`` is one matrix of each type of edges: keys and values exist for pairs of a source and a type only. For
    gradients, an edge keeps H numbers (PyG's layer also keeps 3 F), and such a pair 3 F. Nodes of a type at which no edge ends
    keep a row like nodes without in-edges; PyG's layer leaves their type out.

    over: the aggregator of extended rows, or the halo in pieces. edges: with nodes.
    """

    def __init__(
        self,
        heads: Heads,
        over: Aggregator | HaloPieces,
        edges: TypedEdges,
        drops: tuple[KeyedDropout, ...],
        compute: Compute = "float32",
    ) -> None:
        super().__init__(heads, parts(over), drops, compute)
        assert edges.nodes is not None
        self.over, self.edges, self.nodes, width = over, edges, edges.nodes, heads.count * heads.width
        if isinstance(over, Aggregator):
            over.row_squares = edges.row_squares(self)
        types, relations = len(self.nodes.sizes), len(edges.sizes)
        self.weight_key, self.weight_query, self.weight_value, self.weight_out = (
            matrices(types, width, width) for _ in range(4)
        )
        self.bias_key, self.bias_query, self.bias_value, self.bias_out = (
            torch.nn.Parameter(torch.zeros(types, width)) for _ in range(4)
        )
        self.relation_key, self.relation_value = (
            matrices(relations, heads.count, heads.width, heads.width) for _ in range(2)
        )
        self.prior = torch.nn.Parameter(torch.ones(relations, heads.count))
        self.skip = torch.nn.Parameter(torch.ones(types))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges, nodes, compute, backend = self.edges, self.nodes, self.compute, self.backend
        under_way = self.over.begin(x) if isinstance(self.over, Aggregator) else None
        query = nodes.product(x, self.weight_query, self.bias_query, self._of_scores, backend)  # while rows travel
        scaled = self.relation_key * (self.prior / math.sqrt(self.heads.width))[:, :, None, None]
        of_keys = self._of_pairs(self.weight_key, self.bias_key, scaled)
        of_values = self._of_pairs(self.weight_value, self.bias_value, self.relation_value)
        if under_way is None:
            assert isinstance(self.over, HaloPieces)
            sums = self.piecewise(self.over, self._sources)(x, query, None, *of_keys, *of_values)
        else:
            scores, values = self._sources(edges, query, under_way.finish(), *of_keys, *of_values)
            alpha = self.kept(edge_softmax(edges.csr, scores, backend))
            sums = self.spmm(edges.csr, values, self.drops[0](alpha), backend=backend)
        y = nodes.product(F.gelu(sums), self.weight_out, self.bias_out, compute, backend)
        return torch.lerp(x, y, spmm(nodes.types, torch.sigmoid(self.skip)[:, None], backend=backend))

    @property
    def _of_scores(self) -> Any:
        """The arithmetic of scores: 8 bits are too few for what a softmax sees."""
        return FLOAT32 if isinstance(self.compute, Int8) else self.compute

    def _sources(
        self, edges: TypedEdges | TypedBlock, query: torch.Tensor, rows: torch.Tensor, *maps: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(e, H) scores and (p, F) values. maps: weights and biases by type of edges, of keys and of values."""
        backend, pairs = self.backend, spmm(edges.sources, rows, backend=self.backend)
        keys, values = (
            products(pairs, edges.sizes, maps[at], arithmetic, backend)
            + spmm(edges.types, maps[at + 1], backend=backend)
            for at, arithmetic in ((0, self._of_scores), (2, _of_values(self)))
        )
        return sddmm(edges.csr, query, keys, "dot", self.heads.count, backend), values

    def _of_pairs(
        self, weight: torch.Tensor, bias: torch.Tensor, relation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(R, F, F) weights and (R, F) biases of keys or values by type of edges, from weight (T, F, F) and bias (T, F) of their
        sources' types, and relation (R, H, C, C)."""
        types, width, heads = bias.shape[0], bias.shape[1], self.heads
        joint = torch.cat((weight, bias[:, None]), 1).view(types, -1)
        of_sources = spmm(self.nodes.sources, joint, backend=self.backend).view(-1, width + 1, heads.count, heads.width)
        folded = (of_sources.transpose(1, 2) @ relation).transpose(1, 2).flatten(2)
        return folded[:, :-1].contiguous(), folded[:, -1].contiguous()
