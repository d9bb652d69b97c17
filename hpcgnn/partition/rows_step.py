"""The refinement of ``--objective rows`` as a step of partitioning: rank 0 reads the edges, and moves nodes of all slabs."""

from __future__ import annotations

import numpy as np

from hpcgnn.partition.methods import TOLERANCE, Problem
from hpcgnn.partition.rows import RowsResult, Schedule, limits_of, minimise_rows
from hpcgnn.partition.slabs import Advance, edge_chunks
from hpcgnn.world import raise_on_all_ranks

# The shortest time limit. On small graphs, for which partitioners take almost no time, the result then depends on the seed
# only.
_LEAST_SECONDS = 1.0


def refine_rows(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> tuple[np.ndarray, str]:
    """``(better parts of this rank's nodes (n,) int32, a sentence about the result)``. Collective.

    It takes at most ``seconds``, the time of the partitioner, or one second if that is more. No part exceeds the tolerance or,
    in a quantity that was balanced worse, the heaviest part so far. Rank 0 holds all edges, about 40 bytes for each direction,
    while the other ranks wait.
    """
    world = problem.world
    everything = np.zeros(world.size, dtype=np.int64)
    everything[0] = parts.size
    gathered, _ = world.alltoallv(parts.astype(np.int32, copy=False), everything)
    counts, note = np.zeros(world.size, dtype=np.int64), ""
    with raise_on_all_ranks(world, "refine the partition"):
        if world.rank == 0:
            result = _refine(problem, gathered, max(seconds, _LEAST_SECONDS), advance)
            gathered, note, counts = result.parts, result.note, np.diff(problem.slab.bounds)
    return world.alltoallv(gathered, counts)[0], world.broadcast(note)


def refine_steps(num_nodes: int, num_parts: int) -> int:
    """The number of steps by which :func:`refine_rows` advances in total."""
    return Schedule.of(num_parts).passes * num_nodes


def _refine(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> RowsResult:
    reader, num_parts = problem.reader, problem.options.num_parts
    nodes = reader.meta.num_nodes
    indptr = reader.indptr(0, nodes)
    indices = np.empty(reader.meta.num_edges, dtype=np.int32 if nodes < 1 << 31 else np.int64)
    for chunk in edge_chunks(reader, 0, nodes):
        indices[chunk.indptr[0] : chunk.indptr[-1]] = chunk.sources
    weights = problem.balance.weights(reader, 0, indptr)
    # The weights count each node as one more edge; the number of edges alone is balanced as well.
    if "edges" in problem.balance.names:
        weights = np.column_stack((weights, np.diff(indptr)))
    limits = limits_of(parts, num_parts, weights, TOLERANCE)
    return minimise_rows(
        indptr,
        indices,
        parts,
        num_parts,
        weights,
        limits,
        seed=problem.options.seed,
        seconds=seconds,
        advance=advance,
    )
