"""The self-loops of GCN and attention."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.plan import AggregationPlan
from hpcgnn.world import World


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
