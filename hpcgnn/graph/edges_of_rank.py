"""Questions of a rank to others about the edges that end at its nodes: ids of their sources, and weights in a plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.checks import in_range
from hpcgnn.data.h5 import damaged
from hpcgnn.kernels import Csr
from hpcgnn.plan import AggregationPlan, SparseMatrix
from hpcgnn.world import World, raise_on_all_ranks


def check_edges(indptr: np.ndarray, indices: np.ndarray, owned: int, num_nodes: int) -> None:
    """Raise HpcgnnError unless the arrays, which a program may have changed, are edges from ``num_nodes`` nodes to ``owned``."""
    rising = indptr.size == owned + 1 and bool((indptr[1:] >= indptr[:-1]).all())
    if not rising or indptr[-1] - indptr[0] != indices.size:
        raise HpcgnnError("indptr of the graph in memory does not divide its indices among its nodes")
    if indices.size and not in_range(indices, 0, num_nodes - 1):
        raise HpcgnnError(f"indices of the graph in memory are not all from 0 to {num_nodes - 1}")


def asked_rows(
    world: World, positions: np.ndarray, node_offsets: np.ndarray
) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """The owned nodes that are in other ranks' halos, by their place in the file's order. Collective.

    positions: (h,) ascending positions of this rank's halo nodes. Returns the (a,) int64 places, their number by rank, and the
    number of this rank's halo nodes by rank.
    """
    counts = np.diff(np.searchsorted(positions, node_offsets))
    asked, asked_counts = world.alltoallv(positions, counts)
    return torch.from_numpy(asked - node_offsets[world.rank]), asked_counts, counts


def halo_ids(world: World, positions: np.ndarray, node_offsets: np.ndarray, original_ids: torch.Tensor) -> torch.Tensor:
    """(h,) int64 original ids of the halo nodes at these (h,) positions. original_ids: (n,) of the file's order. Collective."""
    places, asked_counts, _ = asked_rows(world, positions, node_offsets)
    return world.alltoallv(original_ids[places], asked_counts)[0]


def with_weights(
    world: World, path: Path, plan: AggregationPlan[SparseMatrix], weights: np.ndarray, first: int
) -> AggregationPlan[Csr]:
    """The plan with edge weights; entries that stand for no edge have weight 1. Collective.

    weights: (e,) of the edges that end on this rank, which are numbered from ``first``. path: of the file, for errors.
    """
    send = _weights_at_receivers(world, path, plan, weights, first)
    found = {id(plan.send): send} | {
        id(matrix): _lookup(weights, matrix.edges - first, matrix.edges >= 0) for matrix in (plan.local, plan.receive)
    }
    return plan.map(lambda m: Csr(m.indptr, m.indices, m.num_cols, found[id(m)], check=False))


def _weights_at_receivers(
    world: World, path: Path, plan: AggregationPlan[SparseMatrix], weights: np.ndarray, first: int
) -> np.ndarray:
    """(entries,) float32 weights of S. Its edges belong to the receivers, so this rank asks them. Collective."""
    row_ends = np.concatenate(([0], np.cumsum(plan.send_to.counts(world.size))))
    asked, counts = world.alltoallv(plan.send.edges, np.diff(plan.send.indptr[row_ends]))
    with raise_on_all_ranks(world, f"use the plan in {path}"):
        theirs = asked[(asked >= 0) & ((asked < first) | (asked >= first + weights.size))]
        if theirs.size:
            raise damaged(path, f"its plan asks part {world.rank} for edge {theirs[0]} of another part")
    answers, _ = world.alltoallv(_lookup(weights, asked - first, asked >= 0), counts)
    return answers


def _lookup(values: np.ndarray, index: np.ndarray, valid: np.ndarray) -> np.ndarray:
    found = np.ones(index.size, dtype=values.dtype)
    found[valid] = values[index[valid]]
    return found
