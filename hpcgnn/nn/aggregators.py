"""Construction of the aggregators of a graph."""

from __future__ import annotations

import logging

import torch

from hpcgnn.exchange import Exchange, Messages, choose_links
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.correction import Copies, Correction
from hpcgnn.nn.int8 import SUMMED
from hpcgnn.nn.linear_map import LinearMap, RowKind
from hpcgnn.nn.node_aware import NodeAggregator, NodeCorrection
from hpcgnn.nn.plans import NodeRoutes, check_degrees, plan_of, with_self_loops
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

    The kinds are those of PyG: ``sum`` and ``mean`` over in-edges (SAGEConv: the graph's self-loops count, edge weights do
    not), and ``gcn`` with symmetric normalisation by in-degree, one self-loop on each node, and edge weights if the graph has
    them.

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
) -> Aggregator:
    """The aggregator of a plan and diagonals in their present order, with an exchange over links that suit it. Collective.

    Arrays that were made on the host are moved to the device of ``messages`` here.

    kind: what its rows are. copies: see :class:`hpcgnn.nn.correction.Correction`. routes: the route of rows between the ranks of
    a node, if the plan was made for ranks that share nodes.
    """
    counts = plan.send_to.counts(messages.world.size), plan.receive_from.counts(messages.world.size)
    torch_device = messages.device.torch_device
    plan = plan.map(lambda csr: csr.to(torch_device))
    left, right = (None if diagonal is None else diagonal.to(torch_device) for diagonal in (left, right))
    row_bytes = -(-width * messages.config.bits // 8)
    links = choose_links(messages.world, *counts, messages.config.collective, row_bytes)
    exchange = Exchange(messages, *counts, backend=backend, links=links)
    linear = LinearMap(plan, left, right, backend, () if routes is None else routes.links(plan))
    if routes is None:
        return Aggregator(linear, exchange, Correction(linear, messages.world, counts, copies), kind)
    return NodeAggregator(linear, exchange, NodeCorrection(linear, messages.world, counts, copies), kind)


def _cast(csr: Csr, dtype: torch.dtype) -> Csr:
    return csr if csr.weight is None else csr.with_weight(csr.weight.to(dtype))
