"""Construction of the aggregators of a graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.exchange import Exchange, Messages, choose_links
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.correction import Copies, Correction
from hpcgnn.nn.int8 import SUMMED
from hpcgnn.nn.linear_map import LinearMap, RowKind, as_csr, destinations, first_sources
from hpcgnn.nn.node_aware import NodeAggregator, NodeCorrection
from hpcgnn.nn.plans import NodeRoutes, check_degrees, normalised_by_type, plan_of, with_self_loops
from hpcgnn.plan import AggregationPlan

_LOG = logging.getLogger("hpcgnn")


def make_aggregator(
    graph: LocalGraph,
    kind: str,
    strategy: str = "hybrid",
    *,
    messages: Messages | None = None,
    backend: str = "auto",
    dtype: torch.dtype = torch.float32,
    width: int = 256,
) -> Aggregator:
    """The aggregator ``kind`` of ``graph``. Collective.

    The kinds are those of PyG: ``sum`` and ``mean`` over in-edges (SAGEConv: the graph's self-loops count, edge weights do not),
    and ``gcn`` with symmetric normalisation by in-degree, one self-loop on each node, and edge weights if the graph has them.

    ``width`` is the usual number of columns of a message, by which MPI's collective is chosen
    (:func:`hpcgnn.exchange.choose_links`). Rows are the graph's nodes in the graph's order. The order does not change the bits of
    the results, except those of large unweighted sums (docs/internals/kernels.md).
    """
    weighted = kind == "gcn" and graph.edge_weight is not None
    if graph.edge_weight is not None and not weighted:
        _LOG.warning("%s has edge weights, which %s aggregation does not use (GCN does)", graph.path, kind)
    messages = messages or Messages(graph.world, device=graph.device)
    plan, routes = plan_of(graph, strategy, messages, weighted=weighted, width=width)
    plan = plan.map(lambda csr: _cast(csr, dtype))
    left = right = None
    if kind == "gcn":
        plan, degree = with_self_loops(plan, graph, dtype)
        if weighted:
            check_degrees(degree, graph.in_loaded_order(graph.original_ids), graph.world)
        left = right = degree[:, None] ** -0.5
    elif kind == "mean":
        left = 1 / torch.from_numpy(graph.indptr).diff().clamp(min=1).to(dtype)[:, None]
    elif kind != "sum":
        raise ValueError(f"kind must be sum, mean or gcn, not {kind!r}")
    return aggregator_of_plan(graph, plan, left, right, messages=messages, backend=backend, width=width, routes=routes)


@dataclass(frozen=True)
class Relations:
    """The p pairs of a relation and a node of one rank. sizes: number of pairs of each relation, whose rows follow each other.
    merge: (n, p) matrix of ones, the pairs of each node. means: the same with weights, 1 / the number of a pair's edges."""

    sizes: tuple[int, ...]
    merge: Csr
    means: Csr

    def mean_squares(self) -> np.ndarray:
        """(p,) float64 squares of the weights of :attr:`means`, by pair."""
        assert self.means.weight is not None
        squares = np.empty(self.means.num_cols)
        squares[index_array(self.means.indices)] = host_values(self.means.weight.double()) ** 2
        return squares


def make_relation_aggregator(
    graph: LocalGraph,
    strategy: str = "hybrid",
    *,
    messages: Messages,
    backend: str = "auto",
    dtype: torch.dtype = torch.float32,
    width: int = 256,
    kind: str,
) -> tuple[Aggregator, Relations]:
    """The aggregator over the in-edges of each type of ``graph``, (n, F) to (p, F), and its rows. Collective.

    The kinds are ``sum``, ``mean`` and, for edges that begin and end at the same type of nodes, ``gcn``: GCN's sums in the graph
    of each type by itself, less the row of the pair's node, because a node without such edges has just this row in GCN's sums.

    Features are in the graph's order. Rows travel from rank to rank even where ranks share nodes.

    Raises:
        HpcgnnError: on every rank, for a graph without types of edges, and if ``node_aware`` is ``"on"``.
    """
    if messages.config.node_aware == "on":
        raise HpcgnnError(
            "the sums of relations are not added up on a node: leave --node-aware at auto, which sends them from rank to rank",
            agreed=True,
        )
    if graph.edge_weight is not None and kind != "gcn":
        _LOG.warning("%s has edge weights, which sums over relations do not use", graph.path)
    pairs, nodes = graph.relation_rows(), graph.order.nodes
    built, node = graph.built_plan(strategy, pairs.rows), torch.from_numpy(pairs.node)
    plan, left, shares = built.map(as_csr), None, 1 / torch.from_numpy(pairs.edges).to(dtype)
    if kind == "gcn":
        plan = normalised_by_type(built, graph, pairs).map(lambda csr: _cast(csr, dtype))
    elif kind == "mean":
        left = shares[:, None]
    if nodes is not None:  # pairs keep the file's order
        plan = replace(plan, local=plan.local.in_order(None, nodes), send=plan.send.in_order(None, nodes))
        node = torch.argsort(nodes)[node]
    sent = np.where(plan.send_to.is_post(), first_sources(plan.send), -1)
    received = np.where(plan.receive_from.is_post(), -1, index_array(node[destinations(plan.receive)]))
    aggregator = connected(
        plan, left, messages=messages, backend=backend, width=width, kind=RowKind(nodes=(sent, received), are_summed=True),
    )  # fmt: skip
    of_node = torch.argsort(node, stable=True).to(torch.int32)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), torch.bincount(node, minlength=graph.num_nodes).cumsum(0)))
    merge = Csr(indptr, of_node, pairs.rows.count, check=False).to(graph.device.torch_device)
    means = merge.with_weight(shares[of_node.long()].to(graph.device.torch_device))
    return aggregator, Relations(tuple(np.diff(pairs.offsets).tolist()), merge, means)


def aggregator_of_plan(
    graph: LocalGraph,
    plan: AggregationPlan[Csr],
    left: torch.Tensor | None = None,
    right: torch.Tensor | None = None,
    *,
    messages: Messages,
    backend: str = "auto",
    width: int = 256,
    routes: NodeRoutes | None = None,
) -> Aggregator:
    """The aggregator of a plan and of diagonals in the file's order, for features in the graph's order. Collective."""
    nodes = graph.order.nodes
    if nodes is not None:  # last, so that everything before it is in the file's order, as the edges are
        plan = plan.in_order(nodes)
        left, right = (None if diagonal is None else diagonal[nodes] for diagonal in (left, right))
    return connected(plan, left, right, messages=messages, backend=backend, width=width, routes=routes)


def connected(
    plan: AggregationPlan[Csr],
    left: torch.Tensor | None = None,
    right: torch.Tensor | None = None,
    *,
    messages: Messages,
    backend: str = "auto",
    width: int = 256,
    kind: RowKind = SUMMED,
    copies: Copies | None = None,
    routes: NodeRoutes | None = None,
    collective: str | None = None,
) -> Aggregator:
    """The aggregator of a plan and diagonals in their present order, with an exchange over links that suit it. Collective.

    Arrays that were made on the host are moved to the device of ``messages`` here.

    kind: what its rows are. copies: see :class:`hpcgnn.nn.correction.Correction`. routes: the route of rows between the ranks of
    a node, if the plan was made for ranks that share nodes. collective: of MPI; None: that of the settings.
    """
    counts = plan.send_to.counts(messages.world.size), plan.receive_from.counts(messages.world.size)
    torch_device = messages.device.torch_device
    plan = plan.map(lambda csr: csr.to(torch_device))
    left, right = (None if diagonal is None else diagonal.to(torch_device) for diagonal in (left, right))
    row_bytes = -(-width * messages.config.bits // 8)
    links = choose_links(messages.world, *counts, collective or messages.config.collective, row_bytes)
    exchange = Exchange(messages, *counts, backend=backend, links=links)
    linear = LinearMap(plan, left, right, backend, () if routes is None else routes.links(plan))
    if routes is None:
        return Aggregator(linear, exchange, Correction(linear, messages.world, counts, copies), kind)
    return NodeAggregator(linear, exchange, NodeCorrection(linear, messages.world, counts, copies), kind)


def _cast(csr: Csr, dtype: torch.dtype) -> Csr:
    return csr if csr.weight is None else csr.with_weight(csr.weight.to(dtype))
