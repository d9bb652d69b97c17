"""The choice of the parts that share a node of the machine: groups of K parts with many edges between them, which are
renumbered to be consecutive. It runs after any partitioner, and needs only the quotient graph: its nodes are the parts, and
its weights the numbers of cut edges between two parts."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.compiled import njit
from hpcgnn.partition.problem import Problem, edge_chunks, in_step
from hpcgnn.partition.separate_process import maps

_SWEEPS = 20
# The time of a start grows with the square of the number of parts: seconds for thousands of parts.
_STARTS, _MOST_PARTS_FOR_STARTS = 8, 2048


def grouped(parts: np.ndarray, problem: Problem, method: str) -> np.ndarray:
    """The parts (n,) int32 of this rank's nodes, renumbered so that parts ``k * K`` to ``(k + 1) * K - 1`` are group k, for
    K = ``ranks_per_node``. Collective. Numbers stay for K = 1 and K = P, and after a ``method`` that makes groups itself."""
    options, world = problem.options, problem.world
    if options.ranks_per_node in (1, options.num_parts) or (method == "mtkahypar" and maps(options)):
        return parts
    quotient = quotient_graph(problem, parts)
    numbers = np.zeros(0, dtype=np.int32)
    if world.rank == 0:
        groups = group_parts(quotient, options.ranks_per_node, options.seed)
        numbers = np.empty(groups.size, dtype=np.int32)
        numbers[np.argsort(groups, kind="stable")] = np.arange(groups.size)
    return world.broadcast(numbers, root=0)[parts]


def quotient_graph(problem: Problem, parts: np.ndarray) -> sp.csr_matrix:
    """(P, P) symmetric float64 matrix of the numbers of cut edges, of both directions, between two parts; empty on all ranks
    but 0. Collective. parts: (n,) of this rank's nodes, which ``problem.advance`` counts once."""
    world, slab, shape = problem.world, problem.slab, (problem.options.num_parts,) * 2
    mine = sp.csr_matrix(shape, dtype=np.int64)
    for chunk in in_step(world, edge_chunks(problem.reader, slab.first, slab.last), "read the edges"):
        here = parts[chunk.destinations() - slab.first]
        there = world.rows_of(slab.bounds, parts, chunk.sources)
        cut = here != there
        mine += sp.csr_matrix((np.ones(np.count_nonzero(cut), np.int64), (here[cut], there[cut])), shape=shape)
        problem.advance(chunk.last - chunk.first)
    entries = mine.tocoo()
    rows, columns, counts = world.to_rank_0(np.stack([entries.row, entries.col, entries.data], axis=1)).T
    directed = sp.csr_matrix((counts.astype(np.float64), (rows, columns)), shape=shape)
    return (directed + directed.T).tocsr()


def group_parts(quotient: sp.csr_matrix, size: int, seed: int) -> np.ndarray:
    """The group (P,) of each part; each has exactly ``size`` parts, and much of the weight of ``quotient`` is inside groups.

    It is the best of several starts, each improved by swaps of two parts. One start groups parts by their numbers, because
    recursive partitioners give neighbours close numbers. In the others, groups grow from random parts. METIS divides by zero
    on graphs of so few nodes.
    """
    csr = quotient.indptr, quotient.indices, quotient.data
    best = np.arange(quotient.shape[0]) // size
    most = improve_groups(*csr, best)
    for start in range(_STARTS if quotient.shape[0] <= _MOST_PARTS_FOR_STARTS else 1):
        order = np.random.default_rng((seed, start)).permutation(quotient.shape[0])
        groups = _grown_groups(*csr, order, size)
        inside = improve_groups(*csr, groups)
        if inside > most:
            best, most = groups, inside
    return best


@njit(cache=True)
def _grown_groups(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, order: np.ndarray, size: int
) -> np.ndarray:
    """(P,) groups. Each starts with the next free part of ``order``, and takes the free parts with most weight toward it."""
    groups = np.full(order.size, -1)
    toward = np.empty(order.size)
    group = 0
    for first in order:
        if groups[first] >= 0:
            continue
        toward[:] = 0.0
        part = first
        for _ in range(size):
            groups[part] = group
            for i in range(indptr[part], indptr[part + 1]):
                toward[indices[i]] += data[i]
            part = -1
            for other in order:
                if groups[other] < 0 and (part < 0 or toward[other] > toward[part]):
                    part = other
        group += 1
    return groups


@njit(cache=True)
def improve_groups(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, groups: np.ndarray) -> float:
    """Swap parts between ``groups`` (P,), modified, as long as that adds weight inside them; returns this weight. indptr,
    indices, data: the symmetric quotient graph in CSR. Weights are counts, so their sums are exact in any order. Memory is
    O(P)."""
    inside = np.zeros(groups.size)
    for part in range(groups.size):
        inside[part] = _weight_inside(indptr, indices, data, groups, part)
    for _ in range(_SWEEPS):
        if not _swap_parts(indptr, indices, data, groups, inside):
            break
    return inside.sum() / 2


@njit(cache=True)
def _weight_inside(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, groups: np.ndarray, part: int) -> float:
    weight = 0.0
    for i in range(indptr[part], indptr[part + 1]):
        if groups[indices[i]] == groups[part]:
            weight += data[i]
    return weight


@njit(cache=True)
def _swap_parts(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, groups: np.ndarray, inside: np.ndarray
) -> bool:
    """Swap each part with the part of another group for which this gains most, if it gains at all; returns whether any did.
    inside: (P,) weight of each part toward its own group."""
    swapped = False
    between, toward, to_own = np.zeros(groups.size), np.zeros(groups.size), np.zeros(groups.size)
    for part in range(groups.size):
        own = groups[part]
        between[:] = 0.0
        toward[:] = 0.0
        to_own[:] = 0.0
        for i in range(indptr[part], indptr[part + 1]):
            between[indices[i]] = data[i]
            toward[groups[indices[i]]] += data[i]
        for member in np.flatnonzero(groups == own):
            for i in range(indptr[member], indptr[member + 1]):
                to_own[indices[i]] += data[i]
        other, most = -1, 0.0
        for each in range(groups.size):
            group = groups[each]
            if group == own:
                continue
            gain = toward[group] - inside[part] + to_own[each] - inside[each] - 2 * between[each]
            if gain > most:
                other, most = each, gain
        if other >= 0:
            groups[part], groups[other] = groups[other], own
            for member in np.flatnonzero((groups == own) | (groups == groups[part])):
                inside[member] = _weight_inside(indptr, indices, data, groups, member)
            swapped = True
    return swapped
