"""The rows that hybrid plans send, counted exactly: minimum vertex covers of all pairs of parts by one matching.

A node has a *role* as a source and one as a destination. Every edge joins the first role of its source with the second of
its destination, so that roles form an undirected graph. Where an edge's ends lie in different parts, one of them must have
a row for the other's part: the source sends itself there (*post*), or the destination gets a sum from there (*pre*). A
*place* is a role and another part in which it has neighbours; which places have rows is a vertex cover of a graph whose
edges are the cut edges. That graph is bipartite (on one side are roles whose part's number is below the other's), so the
smallest cover is as large as a maximum matching. In a graph that holds both directions of every edge the rows from b to a
mirror those from a to b: one role does for both, and counts twice.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from hpcgnn.errors import HpcgnnError


class Roles(NamedTuple):
    """The graph of roles, without self-loops and repeated edges; role ``r`` of node v is ``v + r * nodes``.

    ``begin`` (M+1,) int64 delimits each role's neighbours in ``other`` (m,) int32, ascending; ``twin`` (m,) int32 or int64
    is the position of the same edge at its other end. M is ``nodes`` times ``roles``, which is 1 or 2.
    """

    begin: np.ndarray
    other: np.ndarray
    twin: np.ndarray
    nodes: int
    roles: int


class Cover(NamedTuple):
    """Places ``begin[i]`` to ``begin[i + 1]`` are role i's: ``part`` (places,) int32, and whether there is a ``row``, bool."""

    begin: np.ndarray
    part: np.ndarray
    row: np.ndarray


def roles_of(indptr: np.ndarray, indices: np.ndarray) -> Roles:
    """The roles of the graph with these in-edges: ``indptr`` (N+1,) from 0, ``indices`` (E,) sources of each destination."""
    nodes = indptr.size - 1
    if 2 * max(nodes, indices.size) >= 1 << 31:
        raise HpcgnnError(
            f"--objective rows moves nodes of graphs with up to 2**30 edges, and this one has {indices.size:,}: take"
            " --objective volume"
        )
    into = _simple(indptr, indices)
    out = into.T.tocsr()
    out.sort_indices()
    if np.array_equal(into.indptr, out.indptr) and np.array_equal(into.indices, out.indices):
        begin, other = into.indptr.astype(np.int64), into.indices
        return Roles(begin, other, _twins(begin, other), nodes, 1)
    begin = np.concatenate((out.indptr, into.indptr[1:].astype(np.int64) + out.indptr[-1]))
    other = np.concatenate((out.indices + np.int32(nodes), into.indices))
    return Roles(begin, other, _twins(begin, other), nodes, 2)


def _simple(indptr: np.ndarray, indices: np.ndarray) -> sp.csr_matrix:
    """Without self-loops and repeated edges; rows ascending."""
    nodes = indptr.size - 1
    kept = indices != np.repeat(np.arange(nodes, dtype=indices.dtype), np.diff(indptr))
    begin = np.concatenate(([0], np.cumsum(kept)))[indptr].astype(np.int32)
    columns = indices[kept].astype(np.int32)
    graph = sp.csr_matrix((np.ones(columns.size, dtype=np.int8), columns, begin), shape=(nodes, nodes))
    graph.sum_duplicates()
    return graph


@numba.njit(cache=True)
def _twins(begin: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(m,) int32. Roles are visited in order, and neighbours ascend: each visit is the next neighbour of the other end."""
    twin = np.empty(other.size, np.int32)
    cursor = begin[:-1].copy()
    for i in range(begin.size - 1):
        for e in range(begin[i], begin[i + 1]):
            twin[e] = cursor[other[e]]
            cursor[other[e]] += 1
    return twin


def minimum_cover(graph: Roles, part: np.ndarray, num_parts: int) -> tuple[Cover, int]:
    """Which places have rows in a plan that sends the fewest, and how many rows that plan sends.

    ``part`` (M,) int32 is each role's. Memory O(edges); time O(edges) and the matching, of Hopcroft and Karp.
    """
    begin, of_part, place_of_edge = _places(graph, part, num_parts)
    number, left, right = _sides(begin, of_part, part)
    if left == 0:
        return Cover(begin, of_part, np.zeros(0, dtype=np.bool_)), 0
    indptr, indices = _cut_graph(graph, part, place_of_edge, number, left)
    matrix = sp.csr_matrix((np.ones(indices.size, dtype=np.int8), indices, indptr), shape=(left, right))
    partner = maximum_bipartite_matching(matrix, perm_type="column").astype(np.int32)
    row = _koenig(indptr, indices, partner, right, begin, of_part, part, number)
    return Cover(begin, of_part, row), int(np.count_nonzero(partner >= 0)) * (2 // graph.roles)


@numba.njit(cache=True)
def _places(graph: Roles, part: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(begin, part of each place, place of each edge at this end or -1)``."""
    begin = np.zeros(graph.begin.size, np.int64)
    place_of_edge = np.full(graph.other.size, -1, np.int32)
    of_part = np.empty(graph.other.size, np.int32)
    found = np.full(num_parts, -1, np.int32)
    count = 0
    for i in range(graph.begin.size - 1):
        for e in range(graph.begin[i], graph.begin[i + 1]):
            theirs = part[graph.other[e]]
            if theirs == part[i]:
                continue
            if found[theirs] < 0:
                found[theirs] = count
                of_part[count] = theirs
                count += 1
            place_of_edge[e] = found[theirs]
        for place in range(begin[i], count):
            found[of_part[place]] = -1
        begin[i + 1] = count
    return begin, of_part[:count].copy(), place_of_edge


@numba.njit(cache=True)
def _sides(begin: np.ndarray, of_part: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, int, int]:
    """``(number of each place on its side, places on the left, on the right)``; left: the role's part is the lower one."""
    number = np.empty(of_part.size, np.int32)
    left = right = 0
    for i in range(begin.size - 1):
        for place in range(begin[i], begin[i + 1]):
            if part[i] < of_part[place]:
                number[place] = left
                left += 1
            else:
                number[place] = right
                right += 1
    return number, left, right


@numba.njit(cache=True)
def _cut_graph(
    graph: Roles, part: np.ndarray, place_of_edge: np.ndarray, number: np.ndarray, left: int
) -> tuple[np.ndarray, np.ndarray]:
    """CSR of the cut edges by their left place."""
    indptr = np.zeros(left + 1, np.int32)
    for i in range(graph.begin.size - 1):
        for e in range(graph.begin[i], graph.begin[i + 1]):
            if part[i] < part[graph.other[e]]:
                indptr[number[place_of_edge[e]] + 1] += 1
    for one in range(left):
        indptr[one + 1] += indptr[one]
    indices = np.empty(indptr[left], np.int32)
    cursor = indptr[:-1].copy()
    for i in range(graph.begin.size - 1):
        for e in range(graph.begin[i], graph.begin[i + 1]):
            if part[i] < part[graph.other[e]]:
                mine = number[place_of_edge[e]]
                indices[cursor[mine]] = number[place_of_edge[graph.twin[e]]]
                cursor[mine] += 1
    return indptr, indices


@numba.njit(cache=True)
def _koenig(
    indptr: np.ndarray,
    indices: np.ndarray,
    partner: np.ndarray,
    right: int,
    begin: np.ndarray,
    of_part: np.ndarray,
    part: np.ndarray,
    number: np.ndarray,
) -> np.ndarray:
    """(places,) bool, the cover: left places that alternating paths from unmatched ones do not reach, right ones they do."""
    back = np.full(right, -1, np.int32)
    reached_left = partner < 0
    stack = np.empty(partner.size, np.int32)
    top = 0
    for one in range(partner.size):
        if partner[one] >= 0:
            back[partner[one]] = one
        else:
            stack[top] = one
            top += 1
    reached_right = np.zeros(right, np.bool_)
    while top:
        top -= 1
        one = stack[top]
        for k in range(indptr[one], indptr[one + 1]):
            other = indices[k]
            if not reached_right[other]:
                reached_right[other] = True
                matched = back[other]  # there is one: else the path would augment a maximum matching
                if not reached_left[matched]:
                    reached_left[matched] = True
                    stack[top] = matched
                    top += 1
    row = np.empty(of_part.size, np.bool_)
    for i in range(begin.size - 1):
        for place in range(begin[i], begin[i + 1]):
            low = part[i] < of_part[place]
            row[place] = not reached_left[number[place]] if low else reached_right[number[place]]
    return row
