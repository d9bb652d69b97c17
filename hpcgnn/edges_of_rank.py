"""What one rank asks of others about the edges that end at its nodes: ids of their sources, and weights in a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcgnn.comm import raise_on_all_ranks
from hpcgnn.data.checks import in_range
from hpcgnn.data.h5 import damaged
from hpcgnn.errors import HpcgnnError
from hpcgnn.host import host_values
from hpcgnn.kernels import Csr
from hpcgnn.plan import AggregationPlan, SparseMatrix

if TYPE_CHECKING:
    from hpcgnn.graph import LocalGraph


def check_edges(graph: LocalGraph) -> None:
    """Raise HpcgnnError unless the arrays, which a program may have changed, are edges between nodes of the graph."""
    indptr, indices, nodes = graph.indptr, graph.indices, graph.meta.num_nodes
    rising = indptr.size == graph.num_nodes + 1 and bool((indptr[1:] >= indptr[:-1]).all())
    if not rising or indptr[-1] - indptr[0] != indices.size:
        raise HpcgnnError("indptr of the graph in memory does not divide its indices among its nodes")
    if indices.size and not in_range(indices, 0, nodes - 1):
        raise HpcgnnError(f"indices of the graph in memory are not all from 0 to {nodes - 1}")


def halo_ids(graph: LocalGraph) -> torch.Tensor:
    """(h,) int64 original ids of the halo nodes, by position. Collective."""
    halo = graph.halo_positions
    counts = np.diff(np.searchsorted(halo, graph.node_offsets))
    asked, asked_counts = graph.world.alltoallv(halo, counts)
    of_position = graph.in_loaded_order(graph.original_ids)
    return graph.world.alltoallv(of_position[torch.from_numpy(asked - graph.first)], asked_counts)[0]


def with_weights(graph: LocalGraph, plan: AggregationPlan[SparseMatrix]) -> AggregationPlan[Csr]:
    """The plan with the graph's edge weights; entries that stand for no edge have weight 1. Collective."""
    assert graph.edge_weight is not None
    values = host_values(graph.edge_weight)
    weights = {
        id(matrix): _lookup(values, matrix.edges - graph.indptr[0], matrix.edges >= 0)
        for matrix in (plan.local, plan.receive)
    }
    weights[id(plan.send)] = _weights_at_receivers(graph, plan, values)
    return plan.map(lambda m: Csr(m.indptr, m.indices, m.num_cols, weights[id(m)], check=False))


def _weights_at_receivers(graph: LocalGraph, plan: AggregationPlan[SparseMatrix], values: np.ndarray) -> np.ndarray:
    """(entries,) float32 weights of S. Its edges belong to the receivers, so this rank asks them. Collective."""
    world = graph.world
    row_ends = np.concatenate(([0], np.cumsum(plan.send_to.counts(world.size))))
    asked, counts = world.alltoallv(plan.send.edges, np.diff(plan.send.indptr[row_ends]))
    with raise_on_all_ranks(world, f"use the plan in {graph.path}"):
        theirs = asked[(asked >= 0) & ((asked < graph.indptr[0]) | (asked >= graph.indptr[-1]))]
        if theirs.size:
            raise damaged(graph.path, f"its plan asks part {world.rank} for edge {theirs[0]} of another part")
    answers, _ = world.alltoallv(_lookup(values, asked - graph.indptr[0], asked >= 0), counts)
    return answers


def _lookup(values: np.ndarray, index: np.ndarray, valid: np.ndarray) -> np.ndarray:
    found = np.ones(index.size, dtype=values.dtype)
    found[valid] = values[index[valid]]
    return found
