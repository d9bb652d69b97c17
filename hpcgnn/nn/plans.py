"""The choice of an aggregation's plan, between pairs of ranks or node-aware where ranks share nodes; and its self-loops."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph, check_edges, with_weights
from hpcgnn.graph.node_plan import NodeRoute, RecordExchange, build_node_plan, rows_if_placed
from hpcgnn.kernels import Csr
from hpcgnn.nn.linear_map import NodeLinks, as_csr
from hpcgnn.plan import AggregationPlan, SparseMatrix
from hpcgnn.plan.plan import owners_of
from hpcgnn.plan.relations import RelationRows
from hpcgnn.world import World, raise_on_all_ranks
from hpcgnn.world.node_memory import NodeMemory
from hpcgnn.world.placement import Placement

_LOG = logging.getLogger("hpcgnn")


@dataclass(frozen=True, eq=False)
class NodeRoutes:
    """The routes of rows between the ranks of a node. forward, backward: of the forward and the backward direction, each with its
    memory.
    """

    node: World
    forward: tuple[NodeRoute, NodeMemory]
    backward: tuple[NodeRoute, NodeMemory]

    def links(self, plan: AggregationPlan[Csr]) -> tuple[NodeLinks, ...]:
        """The links for a plan, whose nodes may be in another order, and for its reverse."""
        both = ((self.forward, plan), (self.backward, plan.reverse()))
        return tuple(NodeLinks.of(memory, self.node, route, way.receive) for (route, memory), way in both)


def plan_of(
    graph: LocalGraph, strategy: str, messages: Messages, *, weighted: bool = False, width: int = 256
) -> tuple[AggregationPlan[Csr], NodeRoutes | None]:
    """The plan of a strategy, in the file's order of nodes, and the route within a node. Collective.

    The route is None if no ranks share a node or ``messages.config.node_aware`` turns it off. width: usual number of
    columns of a message. weighted: see :meth:`hpcgnn.graph.local_graph.LocalGraph.plan`.

    Raises:
        HpcgnnError: on every rank, with ``node_aware="on"``, if a node has too little shared memory.
    """
    if not messages.is_node_aware:
        return graph.plan(strategy, weighted=weighted), None
    world, node = graph.world, graph.world.on_my_node()
    with raise_on_all_ranks(world, "plan the messages"):
        check_edges(graph.indptr, graph.indices, graph.num_nodes, graph.meta.num_nodes)
    built = build_node_plan(world, node, messages.placement, graph.node_offsets, graph.indptr, graph.indices, strategy)
    memories = [NodeMemory(world, node, route.written, route.arrived) for route in (built.forward, built.backward)]
    try:
        for memory in memories:  # room for rows in full precision
            memory.prepare(4 * width)
    except HpcgnnError as problem:
        if messages.config.node_aware == "on":
            raise
        if world.rank == 0:
            _LOG.warning("ranks exchange messages in pairs, and not node by node: %s", problem)
        for memory in memories:
            memory.free()
        return graph.plan(strategy, weighted=weighted), None
    _warn_of_placement(graph, messages, strategy, built.plan.send_to.total)
    way = NodeRoutes(node, (built.forward, memories[0]), (built.backward, memories[1]))
    plan = built.plan
    if not (weighted and graph.edge_weight is not None):
        return plan.map(as_csr), way
    # Entries that only copy a row have weight 1.
    weights = {id(matrix): _weights(graph, matrix.edges) for matrix in (plan.local, plan.send, plan.receive)}
    return plan.map(lambda m: Csr(m.indptr, m.indices, m.num_cols, weights[id(m)], check=False)), way


def _warn_of_placement(graph: LocalGraph, messages: Messages, strategy: str, sent: int) -> None:
    """Warn, with the number of additional rows, if ranks are on other nodes than the partition was made for. Collective."""
    world, per_node = graph.world, graph.ranks_per_node
    if per_node in (1, world.size) or messages.warned_of_placement:
        return
    intended = Placement.in_blocks(world.size, per_node)
    if np.array_equal(intended.node_of, messages.placement.node_of):
        return
    messages.warned_of_placement = True
    about = graph.node_offsets, graph.indptr, graph.indices, strategy
    least = rows_if_placed(world, intended, *about)
    total = int(world.allreduce(np.array([sent]))[0])
    if world.rank == 0:
        _LOG.warning(
            "%s was partitioned for nodes of %d consecutive ranks, but ranks are placed otherwise: %s rows travel between nodes "
            "in each aggregation, instead of %s (place ranks in blocks, for instance by srun --distribution=block or mpirun "
            "--map-by core)",
            graph.path, per_node, f"{total:,}", f"{least:,}",
        )  # fmt: skip


def _weights(graph: LocalGraph, edges: np.ndarray) -> torch.Tensor:
    """(entries,) float32 weights of edges, fetched from the ranks at which the edges end; -1 stands for no edge. Collective."""
    assert graph.edge_weight is not None
    last = graph.world.allgather(np.array([graph.indptr[-1]]))[:, 0]
    is_edge = edges >= 0
    asked = RecordExchange(graph.world, np.searchsorted(last, edges[is_edge], side="right"), edges[is_edge][:, None])
    mine = host_values(graph.edge_weight)[asked.received[:, 0] - graph.indptr[0]]
    answers = mine.view(np.int32).astype(np.int64)
    found = np.ones(edges.size, np.float32)
    found[is_edge] = asked.answered(answers[:, None])[:, 0].astype(np.int32).view(np.float32)
    return torch.from_numpy(found)


def with_self_loops(
    plan: AggregationPlan[Csr], graph: LocalGraph, dtype: torch.dtype
) -> tuple[AggregationPlan[Csr], torch.Tensor]:
    """The plan with exactly one self-loop on each node in L, and the (n,) in-degrees (sums of weights) including these loops.

    As in PyG's ``add_remaining_self_loops``, a loop that the graph already has keeps its weight (of several loops, the last
    counts), and new loops have weight 1.
    """
    local, num_nodes = plan.local, graph.num_nodes
    rows = local.entry_rows()
    is_loop = rows == local.indices
    nodes = torch.arange(num_nodes)
    order = torch.argsort(torch.cat((rows[~is_loop], nodes)), stable=True)
    columns = torch.cat((local.indices[~is_loop], nodes.to(torch.int32)))[order]
    lengths = torch.bincount(rows[~is_loop], minlength=num_nodes) + 1
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    loops = torch.ones(num_nodes, dtype=dtype)
    weight = None
    all_rows = torch.repeat_interleave(nodes, torch.from_numpy(graph.indptr).diff())
    remaining = torch.from_numpy(graph.indices) != all_rows + graph.first
    if local.weight is not None:
        looped_rows = rows[is_loop]
        is_last = torch.cat(
            (looped_rows[1:] != looped_rows[:-1], torch.ones(min(1, looped_rows.numel()), dtype=torch.bool))
        )
        loops[looped_rows[is_last]] = local.weight[is_loop][is_last]
        weight = torch.cat((local.weight[~is_loop], loops))[order]
        assert graph.edge_weight is not None
        degree = loops.index_add(0, all_rows[remaining], graph.edge_weight.cpu()[remaining].to(dtype))
    else:
        degree = loops + torch.bincount(all_rows[remaining], minlength=num_nodes).to(dtype)
    looped = Csr(indptr, columns, num_nodes, weight, check=False)
    return AggregationPlan(looped, plan.send, plan.receive, plan.send_to, plan.receive_from), degree


def normalised_by_type(
    plan: AggregationPlan[SparseMatrix], graph: LocalGraph, pairs: RelationRows
) -> AggregationPlan[Csr]:
    """The plan of ``pairs`` with the float64 weights of GCN in the graph of each type of edges, less 1 for the row of the pair's
    own node: ``w_e (d_ir d_jr)^-1/2`` for an edge from j to i of type r, and ``w_ir / d_ir - 1`` for i itself. Collective.

    w_ir is the weight of a self-loop, and d_ir the sum of the weights of in-edges of type r including it, as in
    :func:`with_self_loops`.
    """
    types, world, count = index_array(graph.needed_edge_type()), graph.world, graph.num_nodes
    of_edge, is_loop = pairs.rows.of_edge, graph.indices == graph.first + graph.destinations
    given = np.ones(types.size) if graph.edge_weight is None else host_values(graph.edge_weight).astype(np.float64)
    loop = np.ones(pairs.rows.count)
    loop[of_edge[is_loop]] = given[is_loop]  # of several loops, the last counts
    degree = loop + np.bincount(of_edge, np.where(is_loop, 0, given), pairs.rows.count)
    if graph.edge_weight is not None:
        check_degrees(torch.from_numpy(degree), graph.in_loaded_order(graph.original_ids)[pairs.node], world)
    # The degrees of sources, from their owners; a node without in-edges of the type has the loop alone.
    sources, of_source = np.unique(types * graph.meta.num_nodes + graph.indices, return_inverse=True)
    kinds, positions = np.divmod(sources, max(graph.meta.num_nodes, 1))
    owners = owners_of(positions, graph.node_offsets)
    asked = RecordExchange(world, owners, np.stack((kinds, positions), axis=1))
    keys = pairs.relation * count + pairs.node  # ascending
    wanted = asked.received[:, 0] * count + asked.received[:, 1] - graph.first
    places = np.minimum(np.searchsorted(keys, wanted), max(keys.size - 1, 0))
    found = np.ones(wanted.size)
    if keys.size:
        found = np.where(keys[places] == wanted, degree[places], 1.0)
    there = asked.answered(found.view(np.int64)[:, None])[:, 0].view(np.float64)
    weights = np.where(is_loop, 0, given / np.sqrt(degree[of_edge] * there[of_source]))
    weighted = with_weights(world, graph.path, plan, weights, int(graph.indptr[0]))
    local, own = weighted.local, torch.from_numpy(loop / degree - 1)
    assert local.weight is not None
    rows = torch.cat((local.entry_rows(), torch.arange(pairs.rows.count)))
    order = torch.argsort(rows, stable=True)
    looped = Csr(
        local.indptr + torch.arange(local.num_rows + 1),
        torch.cat((local.indices, torch.from_numpy(pairs.node.astype(np.int32))))[order],
        count,
        torch.cat((local.weight, own))[order],
        check=False,
    )
    return replace(weighted, local=looped)


def check_degrees(degree: torch.Tensor, original_ids: torch.Tensor, world: World) -> None:
    """Check the sums of edge weights, (n,), by whose roots GCN divides. original_ids: (n,) of the same nodes. Collective.

    Raises:
        HpcgnnError: on every rank, unless all of them are above 0; PyG's results are not numbers there.
    """
    wrong = ~(degree > 0).cpu()
    count = world.allreduce(np.array([int(wrong.sum())]), what="degrees")[0]
    if count:
        ids = index_array(original_ids.cpu()[wrong])
        first = world.allreduce(ids.min(initial=np.iinfo(np.int64).max, keepdims=True), "min", "degrees")[0]
        raise HpcgnnError(
            f"the edge weights of {count:,} nodes, the first of which is node {first}, add up to 0 or less (with their self-"
            "loop, if they have one), but GCN's normalisation divides by the roots of these sums: give positive weights, or "
            "a model without this normalisation",
            agreed=True,
        )
