"""GraphSAGE, GCN and GAT with weights of their own for each type of edges: PyG's ``HeteroConv``.

A type of edges ends at one type of nodes. With R(i) the types of edges that end at nodes of i's type, a layer computes

    ``y_i = join_{r in R(i)} y_ir`` with ``y_ir = z_ir W_r + x_i U_r + b_r``

where join is a sum, a mean or a maximum. Types of which no edge ends at i count, too: their z_ir is 0. So a rank has z only for
*pairs* of a type and a node at which an edge of it ends (:mod:`hpcgnn.plan.relations`). For sums and means, all that does not
depend on z is one product for each type of nodes, ``x_i sum_r U_r``; for maxima, it has a row for each node i and type in R(i).

Shapes: n owned nodes, p pairs, R types of edges, T types of nodes, F and F' columns of a layer's input and result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, attention_weights, spmm
from hpcgnn.nn.aggregator import Aggregator, CachedAggregator
from hpcgnn.nn.attention import NEGATIVE_SLOPE, Heads, WeighingLayer
from hpcgnn.nn.config import FLOAT32, MAX, MEAN
from hpcgnn.nn.grouped import block_products
from hpcgnn.nn.halo import picks
from hpcgnn.nn.layers import KeyedDropout, matrices
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, matmul, operand
from hpcgnn.nn.relational import TypedEdges, TypedNodes, products
from hpcgnn.plan.plan import offsets_of


@dataclass(frozen=True)
class Join:
    """The combination of the rows of a node's pairs, and of its own row, to one row of each owned node.

    nodes: the owned nodes by type. shares: (T, R) weights of the types of edges that end at nodes of each type: 1, or for a mean
    the inverse of their number. ending: for each type of nodes, the int64 types of edges that end there. places: (n, p), which
    adds up the pairs of each node; for a maximum (m, p), which puts each pair into its place among the m pairs of a node i and a
    type in R(i), ordered by the nodes' types, and then by node. types: for a maximum, (m, R), which gathers a row of each type of
    edges, else None.
    """

    nodes: TypedNodes
    shares: torch.Tensor
    ending: tuple[torch.Tensor, ...]
    places: Csr
    types: Csr | None

    @classmethod
    def of(cls, graph: LocalGraph, how: str, merge: Csr, relation: np.ndarray, dtype: torch.dtype) -> Join:
        """For the pairs in ``merge`` (n, p), with nodes in the graph's order, and their types (p,). how: ``sum``, ``mean`` or
        ``max``. Not collective."""
        nodes, device, kinds = TypedNodes.of(graph), graph.device.torch_device, index_array(graph.node_type)
        ends = graph.meta.edge_type_ends[1]
        ending = [np.flatnonzero(ends == kind) for kind in range(len(nodes.sizes))]
        numbers = np.array([each.size for each in ending])
        shares = np.zeros((len(ending), ends.size))
        shares[ends, np.arange(ends.size)] = 1 / numbers[ends] if how == MEAN else 1
        node, pair, places, types = index_array(merge.entry_rows()), index_array(merge.indices), merge, None
        if how == MEAN:
            places = merge.with_weight(torch.from_numpy(shares[kinds[node], relation[pair]]).to(device, dtype))
        elif how == MAX:
            order, first, number = np.argsort(kinds, kind="stable"), np.empty_like(kinds), np.empty_like(ends)
            first[order] = offsets_of(numbers[kinds[order]])[:-1]
            for each in ending:
                number[each] = np.arange(each.size)
            place = np.empty_like(pair)
            place[pair] = first[node] + number[relation[pair]]
            rows = np.concatenate([np.tile(each, size) for each, size in zip(ending, nodes.sizes, strict=True)])
            places = picks(torch.from_numpy(place), rows.size).transpose().to(device)
            types = picks(torch.from_numpy(rows), ends.size).to(device)
        return cls(
            nodes,
            torch.from_numpy(shares).to(device, dtype),
            tuple(torch.from_numpy(each).to(device) for each in ending),
            places,
            types,
        )

    def own(
        self, x: torch.Tensor, root: torch.Tensor | None, bias: torch.Tensor, compute: Compute, backend: str
    ) -> torch.Tensor:
        """The terms x U and b of nodes x (n, F): (n, F'), or (m, F') for a maximum. root: U (R, F, F') or None for zeros. bias: b
        (R, F')."""
        nodes = self.nodes
        if self.types is None:
            biases = self.shares @ bias
            if root is None:
                return spmm(nodes.types, biases, backend=backend)
            return nodes.product(x, torch.tensordot(self.shares, root, 1), biases, compute, backend)
        if root is None:
            return spmm(self.types, bias, backend=backend)
        rows = x if nodes.by_type is None else spmm(nodes.by_type, x, backend=backend)
        found = [
            matmul(
                operand(part.contiguous(), compute),
                root[types].transpose(0, 1).flatten(1),
                backend,
                bias=bias[types].flatten(),
            )
            for part, types in zip(rows.split(nodes.sizes), self.ending, strict=True)
            if types.numel()
        ]
        return torch.cat([each.view(-1, bias.shape[1]) for each in found])

    def joined(self, own: torch.Tensor, pairs: torch.Tensor, backend: str) -> torch.Tensor:
        """(n, F') rows of nodes, from the result of :meth:`own` and the rows (p, F') of pairs."""
        y = spmm(self.places, pairs, backend=backend).add_(own)
        if self.types is None:
            return y
        nodes = self.nodes
        shapes = [(size, types.numel()) for size, types in zip(nodes.sizes, self.ending, strict=True)]
        rows = torch.cat([
            part.view(*shape, y.shape[1]).max(1).values if shape[1] else y.new_zeros(shape[0], y.shape[1])
            for part, shape in zip(y.split([size * count for size, count in shapes]), shapes, strict=True)
        ])  # fmt: skip
        return rows if nodes.by_type is None else spmm(nodes.by_type.transpose(), rows, backend=backend)


def check_within_types(graph: LocalGraph) -> None:
    """Raise HpcgnnError, on every rank, if edges lead from a type of nodes to another."""
    between = np.flatnonzero(np.diff(graph.meta.edge_type_ends, axis=0)[0])
    if between.size:
        names = "__".join(graph.meta.edge_type_names[between[0]])
        raise HpcgnnError(
            f"gcn with --edge-types normalises edges by the degrees of both ends, as PyG's GCNConv does, and edges of {names} "
            f"in {graph.path} end at another type of nodes than they begin at: take --model sage or gat",
            agreed=True,
        )


class SumsByType(torch.nn.Module):
    """GraphSAGE or GCN for each type of edges; PyG's ``HeteroConv`` of ``SAGEConv`` or ``GCNConv``.

    (n, F) rows to (n, F'). z are means over the neighbours of each type; for GCN its normalised sums, without what U = W adds
    for each node. Its call is collective, forward and backward. aggregator: from x to z (p, F). sizes: number of pairs of each
    type. has_root: whether U are weights of their own, as in GraphSAGE.
    """

    def __init__(
        self,
        widths: tuple[int, int],
        aggregator: Aggregator | CachedAggregator,
        sizes: tuple[int, ...],
        join: Join,
        *,
        has_root: bool,
        compute: Compute = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.sizes, self.join, self.compute = aggregator, sizes, join, compute
        self.weight = matrices(len(sizes), *widths)
        self.weight_root = matrices(len(sizes), *widths) if has_root else None
        self.bias = torch.nn.Parameter(torch.zeros(len(sizes), widths[1]))

    @property
    def last_bias(self) -> torch.nn.Parameter | None:
        """See :attr:`hpcgnn.nn.layers.BiasedLayer.last_bias`; None where nodes differ in the biases that they get."""
        return self.bias if self.join.types is None and len(self.join.nodes.sizes) == 1 else None

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F) rows of nodes to (n, F')."""
        assert isinstance(x, torch.Tensor)
        backend = self.aggregator.backend
        under_way = self.aggregator.begin(x)
        root = self.weight if self.weight_root is None else self.weight_root
        own = self.join.own(x, root, self.bias, self.compute, backend)  # while rows travel
        sums, weights = under_way.finish(), self.weight[:, None]
        pairs = block_products(sums, weights, self.sizes, self.compute, backend, reuse_x=True)
        return self.join.joined(own, pairs, backend)


class GATByType(WeighingLayer):
    """GAT for each type of edges; PyG's ``HeteroConv`` of ``GATConv`` without self-loops.

    (n, F) rows to (n, H*C), or (n, C) with averaged heads. z_ir W_r is ``sum_j alpha_ijr x_j W_r`` over the in-edges of type r,
    with the softmax alpha over these of ``LeakyReLU(x_i W_r a_r + x_j W_r c_r)``, and U is 0. Its call is collective, forward and
    backward. halo: the aggregator of extended rows. edges: with targets.
    """

    def __init__(
        self,
        in_width: int,
        heads: Heads,
        halo: Aggregator,
        edges: TypedEdges,
        join: Join,
        drops: tuple[KeyedDropout, ...],
        compute: Compute = "float32",
    ) -> None:
        super().__init__(heads, [halo], drops, compute)
        self.edges, self.join, types = edges, join, len(edges.sizes)
        halo.row_squares = edges.row_squares(self)
        self.weight = matrices(types, in_width, heads.count * heads.width)
        self.attend_target, self.attend_source = (matrices(types, heads.count, heads.width) for _ in range(2))
        self.bias = torch.nn.Parameter(torch.zeros(types, heads.count * heads.width if heads.join else heads.width))

    last_bias = SumsByType.last_bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, F) rows of nodes to (n, H*C), or (n, C) with averaged heads."""
        (halo,), edges, heads, backend = self.parts, self.edges, self.heads, self.backend
        targets = edges.targets
        assert targets is not None
        under_way = halo.begin(x)
        by_head = self.weight.view(*self.weight.shape[:2], heads.count, heads.width)
        of_target, of_source = (
            (by_head * vectors[:, None]).sum(3) for vectors in (self.attend_target, self.attend_source)
        )
        ends = products(spmm(targets.nodes, x, backend=backend), targets.sizes, of_target, FLOAT32, backend)
        target = spmm(targets.by_node, ends, backend=backend)  # while rows travel
        own = self.join.own(x, None, self.bias, self.compute, backend)
        pairs = spmm(edges.sources, under_way.finish(), backend=backend)
        values = products(pairs, edges.sizes, self.weight, self.compute, backend)
        source = products(pairs, edges.sizes, of_source, FLOAT32, backend)
        alpha = self.kept(attention_weights(targets.csr, target, source, NEGATIVE_SLOPE, backend))
        sums = self.spmm(targets.csr, values, self.drops[0](alpha), backend=backend)
        if not heads.join:
            sums = sums.view(-1, heads.count, heads.width).mean(1)
        return self.join.joined(own, sums, backend)
