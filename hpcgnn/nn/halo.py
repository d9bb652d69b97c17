"""Rows of neighbours that other ranks own, for aggregators that are not linear: attention, maxima, any message function.

Shapes: n owned nodes, h halo nodes, e edges that end at owned nodes. Extended rows are the rows of the owned nodes, in the
graph's order, followed by those of the halo nodes by position, as in ``graph.edge_index``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.kernels.rows import check_index, cluster
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.aggregators import connected
from hpcgnn.nn.correction import Copies
from hpcgnn.nn.int8 import COPIED_TO_HALO
from hpcgnn.nn.linear_map import MOVED, RowKind
from hpcgnn.nn.plans import plan_of
from hpcgnn.plan import AggregationPlan, PeerRows


def make_halo(
    graph: LocalGraph, *, messages: Messages | None = None, backend: str = "auto", width: int = 256,
    kind: RowKind = COPIED_TO_HALO,
) -> Aggregator:  # fmt: skip
    """The map from (n, F) rows to (n + h, F) extended rows: the *post* plan without local aggregation. Collective.

    It is an aggregator like any other: ``z = L x + R · exchange(S x)``, where L is the identity above h empty rows, and R is
    the identity below n empty rows. Its backward pass adds up the gradients of all copies of a row. For the correction of stale
    rows, halo nodes are assumed to have moved like the owned nodes to which they have edges. kind: what its rows are.
    """
    messages = messages or Messages(graph.world, device=graph.device)
    post, routes = plan_of(graph, "post", messages, width=width)
    owned, halo = graph.num_nodes, post.receive.num_cols
    plan = AggregationPlan(
        local=identity(owned, below=halo),
        send=post.send if graph.order.nodes is None else post.send.in_order(None, graph.order.nodes),
        receive=identity(halo, above=owned),
        send_to=post.send_to,
        receive_from=post.receive_from,
    )
    order = graph.order.nodes

    def near() -> Csr:
        return (post.receive if order is None else post.receive.in_order(order, None)).transpose()

    def edges() -> torch.Tensor:
        own = torch.bincount(post.local.indices, minlength=owned) + 1  # attention adds an edge from each node to itself
        of_halo = torch.bincount(post.receive.indices, minlength=halo)
        return torch.cat((own if order is None else own[order], of_halo))[:, None]

    kind = kind if routes is None else MOVED
    return connected(
        plan, messages=messages, backend=backend, width=width, kind=kind, copies=Copies(near, edges), routes=routes
    )


def make_halo_of_type(
    graph: LocalGraph,
    kind: int,
    asked: tuple[torch.Tensor, np.ndarray, np.ndarray],
    *,
    messages: Messages,
    backend: str = "auto",
    width: int = 256,
) -> Aggregator:
    """The map of :func:`make_halo` for the nodes of type ``kind``, in the order of ``graph.nodes_by_type``. Collective.

    It serves all types of edges from these nodes. Rows travel from rank to rank even where ranks share nodes. asked: the numbers
    (a,), among the owned nodes of this type, of those in other ranks' halos by rank, their number by rank, and the number of this
    rank's halo nodes of the type by rank.
    """
    if messages.config.node_aware == "on":
        raise HpcgnnError(
            "rows of one type of nodes travel from rank to rank only: leave --node-aware at auto",
            agreed=True,
        )
    (rows, *counts), nodes = asked, graph.nodes_by_type
    owned, halo = nodes.owned[kind].numel(), nodes.halo[kind].numel()
    plan = AggregationPlan(
        local=identity(owned, below=halo),
        send=Csr(torch.arange(rows.numel() + 1), rows.to(torch.int32), owned, check=False),
        receive=identity(halo, above=owned),
        send_to=PeerRows.of(np.stack((counts[0], np.zeros_like(counts[0])), axis=1)),
        receive_from=PeerRows.of(np.stack((counts[1], np.zeros_like(counts[1])), axis=1)),
    )

    def ends() -> tuple[torch.Tensor, torch.Tensor]:
        edges = graph.local_edge_index()
        edges = edges[:, nodes.type[edges[0]] == kind]
        return nodes.number[edges], nodes.type[edges[1]] == kind

    def near() -> Csr:
        (source, destination), is_same = ends()
        there = is_same & (source >= owned)
        return edge_matrix(torch.stack((destination, source - owned))[:, there], (halo, owned), check=False)[0]

    def edges() -> torch.Tensor:
        counts = torch.bincount(ends()[0][0], minlength=owned + halo)
        counts[:owned] += 1
        return counts[:, None]

    return connected(
        plan, messages=messages, backend=backend, width=width, kind=COPIED_TO_HALO, copies=Copies(near, edges)
    )


def identity(size: int, above: int = 0, below: int = 0) -> Csr:
    """The identity (size, size) with ``above`` empty rows above it and ``below`` empty rows below it."""
    indptr = torch.arange(-above, size + below + 1).clamp(0, size)
    return Csr(indptr, torch.arange(size, dtype=torch.int32), size, check=False)


def edge_matrix(edge_index: torch.Tensor, shape: tuple[int, int], *, check: bool) -> tuple[Csr, torch.Tensor]:
    """The matrix of ``shape`` of (2, e) edges, given as source and destination; and (e,) the number of the edge of each entry.

    Raises:
        ValueError: with ``check``, which is for edges from outside this package, if an edge has a node that does not exist.
    """
    source, destination = edge_index
    if check:
        check_index(source, shape[1])
    indptr, order = cluster(destination, shape[0], check=check)
    order = order.long()
    return Csr(indptr, source[order].to(torch.int32), shape[1], check=False), order


def picks(columns: torch.Tensor, num_cols: int) -> Csr:
    """An (m, num_cols) matrix with a one in each row, in these (m,) columns: it gathers rows, and its transpose scatters them."""
    indptr = torch.arange(columns.numel() + 1, device=columns.device)
    return Csr(indptr, columns.to(torch.int32), num_cols, check=False)


def mover(
    send_to: PeerRows,
    receive_from: PeerRows,
    nodes: tuple[np.ndarray, np.ndarray],
    send: Csr | None = None,
    **how: Any,
) -> Aggregator:
    """An aggregator that only moves rows: L is empty, and R is the identity. Collective.

    nodes: those for which the rows stand. send: S; None: the identity. how: other arguments of
    :func:`hpcgnn.nn.aggregators.connected`.
    """
    send = identity(send_to.total) if send is None else send
    no_rows = torch.zeros(receive_from.total + 1, dtype=torch.int64)
    nothing = Csr(no_rows, torch.zeros(0, dtype=torch.int32), send.num_cols, check=False)
    plan = AggregationPlan(nothing, send, identity(receive_from.total), send_to, receive_from)
    return connected(plan, kind=RowKind(nodes=nodes), **how)


@dataclass(frozen=True)
class AttentionEdges:
    """Edges from extended rows to owned nodes. csr: (n, n + h) structure. original_ids: (n + h,) int64 ids of extended rows.
    attr: (entries, D) features of the edges, or None."""

    csr: Csr
    original_ids: torch.Tensor
    attr: torch.Tensor | None = None

    @cached_property
    def ids(self) -> torch.Tensor:
        """(entries,) int64 hash of the original ids of each edge's two ends.

        It keys random numbers, so that these are the same for any number of ranks. Parallel edges share it.
        """
        return edge_ids(self.original_ids[self.csr.entry_rows()], self.original_ids[self.csr.indices.long()])

    def cut(self, piece_of: torch.Tensor, number: torch.Tensor, sizes: Sequence[int], *, keyed: bool) -> list[Block]:
        """The edges of each piece. piece_of, number: (n + h,) the piece of each extended row, and its number there. sizes: number
        of rows of each piece. keyed: with the ids of edges."""
        return cut(self.csr, (piece_of, number), sizes, self.ids if keyed else None, self.attr)


@dataclass(frozen=True)
class Block:
    """The edges of a piece of extended rows. csr: (N, p) structure, of which N is the number of softmaxes. ids: (e,) int64, as
    :attr:`AttentionEdges.ids`, or None. attr: (e, D) features of the edges, or None. ends: (N', p) structure with the same
    entries, whose rows are those of the targets' values."""

    csr: Csr
    ids: torch.Tensor | None
    attr: torch.Tensor | None
    ends: Csr


def entries_of(csr: Csr) -> Csr:
    """(rows, entries) matrix of ones, the entries of each row of ``csr``, whose sums are those of rows of edges; made once."""

    def make() -> Csr:
        numbers = torch.arange(csr.num_entries, dtype=torch.int32, device=csr.device)
        return Csr(csr.indptr, numbers, csr.num_entries, check=False)

    return csr.kept("entries", make)


def cut(
    whole: Csr,
    places: tuple[torch.Tensor, torch.Tensor],
    sizes: Sequence[int],
    ids: torch.Tensor | None,
    attr: torch.Tensor | None,
    ends: Csr | None = None,
) -> list[Block]:
    """The entries of each piece of the columns of ``whole``. places: (columns,) the piece of each column, and its number there.
    sizes: number of columns of each piece. ids, attr, ends: of all entries, as in :class:`Block`; ends None: ``whole``."""
    pieces, columns = (each[whole.indices.long()] for each in places)
    order, counts = torch.argsort(pieces, stable=True), torch.bincount(pieces, minlength=len(sizes)).tolist()
    columns, blocks = columns.to(torch.int32), []

    def part(csr: Csr, mine: torch.Tensor, size: int) -> Csr:
        lengths = torch.bincount(csr.entry_rows()[mine], minlength=csr.num_rows)
        return Csr(torch.cat((lengths.new_zeros(1), lengths.cumsum(0))), columns[mine], size, check=False)

    for size, mine in zip(sizes, order.split(counts), strict=True):
        csr = part(whole, mine, size)
        keys, features = (None if each is None else each[mine] for each in (ids, attr))
        blocks.append(Block(csr, keys, features, csr if ends is None else part(ends, mine, size)))
    return blocks


def attention_edges(
    graph: LocalGraph, *, self_loops: bool = True, attr_type: torch.dtype | None = None
) -> AttentionEdges:
    """All edges to owned nodes. Collective.

    Args:
        graph: this rank's part.
        self_loops: with exactly one self-loop on each node, as in PyG's ``GATConv``; else with those that the graph has.
        attr_type: type of the features of edges, if the graph has any; None leaves them out. An added self-loop has the mean of
            the features of the node's other in-edges.
    """
    edges = graph.local_edge_index()  # not kept: it may not be needed again
    attr = None if attr_type is None or graph.edge_attr is None else graph.edge_attr.cpu().to(attr_type)
    if self_loops:
        kept = edges[0] != edges[1]
        edges = edges[:, kept]
        if attr is not None:
            attr = attr[kept]
            sums = attr.new_zeros(graph.num_nodes, attr.shape[1]).index_add_(0, edges[1], attr)
            attr = torch.cat((attr, sums / torch.bincount(edges[1], minlength=graph.num_nodes).clamp(min=1)[:, None]))
        edges = torch.cat((edges, torch.arange(graph.num_nodes).expand(2, -1)), dim=1)
    original = torch.cat((graph.original_ids, graph.halo_ids))
    csr, order = edge_matrix(edges, (graph.num_nodes, original.numel()), check=False)
    torch_device = graph.device.torch_device
    attr = None if attr is None else attr[order].to(torch_device)
    return AttentionEdges(csr.to(torch_device), original.to(torch_device), attr)


def edge_ids(destination: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """(entries,) int64 hash of the original ids of the two ends of edges. From 2**32 nodes on, a few edges share a hash."""
    return (destination << 32) ^ source
