"""The exact number of rows that hybrid plans send: minimum vertex covers of all pairs of parts, by one matching.

A node has a *role* as a source and another one as a destination. Every edge joins the first role of its source with the second
role of its destination, so roles form an undirected graph. If the ends of an edge are in different parts, one of them needs a
row for the other's part: the source sends its own row there (*post*), or the destination receives a sum from there (*pre*). A
*place* is a role together with another part in which it has neighbours. The places with rows form a vertex cover of a graph
whose edges are the cut edges. This graph is bipartite (one side has the roles whose part's number is the lower one), so its
minimum cover is as large as its maximum matching. If a graph has both directions of every edge, the rows from part b to part a
mirror those from a to b, so one role for each node suffices, and its rows count twice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from hpcgnn.base.compiled import njit
from hpcgnn.base.errors import HpcgnnError


class Roles(NamedTuple):
    """The graph of roles, without self-loops and parallel edges. Role ``r`` of node v has the number ``v + r * nodes``.

    begin: (M+1,) int64 offsets of each role's neighbours in ``other`` (m,) int32, which ascend. twin: (m,) int32 or int64
    position of the same edge at its other end. M is ``nodes`` times ``roles``, which is 1 or 2.
    """

    begin: np.ndarray
    other: np.ndarray
    twin: np.ndarray
    nodes: int
    roles: int


class Cover(NamedTuple):
    """A vertex cover. Role i has the places ``begin[i]`` to ``begin[i + 1]``. part: (places,) int32. row: (places,) bool,
    whether the place has a row.
    """

    begin: np.ndarray
    part: np.ndarray
    row: np.ndarray


def roles_of(indptr: np.ndarray, indices: np.ndarray) -> Roles:
    """The roles of a graph. indptr: (N+1,) from 0. indices: (E,) sources of the in-edges of each node."""
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
    """The graph without self-loops and parallel edges, with ascending rows."""
    nodes = indptr.size - 1
    kept = indices != np.repeat(np.arange(nodes, dtype=indices.dtype), np.diff(indptr))
    begin = np.concatenate(([0], np.cumsum(kept)))[indptr].astype(np.int32)
    columns = indices[kept].astype(np.int32)
    graph = sp.csr_matrix((np.ones(columns.size, dtype=np.int8), columns, begin), shape=(nodes, nodes))
    graph.sum_duplicates()
    return graph


@njit(cache=True)
def _twins(begin: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(m,) int32 positions of each edge at its other end. Roles are visited in order and neighbours ascend, so each visit is
    the next neighbour of the other end.
    """
    twin = np.empty(other.size, np.int32)
    cursor = begin[:-1].copy()
    for i in range(begin.size - 1):
        for e in range(begin[i], begin[i + 1]):
            twin[e] = cursor[other[e]]
            cursor[other[e]] += 1
    return twin


def minimum_cover(graph: Roles, part: np.ndarray, num_parts: int) -> tuple[Cover, int]:
    """A minimum vertex cover, and the number of rows that a plan with this cover sends.

    part: (M,) int32 part of each role. Takes O(edges) memory, and the time of the matching by Hopcroft and Karp.
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


@njit(cache=True)
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


@njit(cache=True)
def _sides(begin: np.ndarray, of_part: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, int, int]:
    """``(number of each place on its side, number of places on the left, and on the right)``. A place is on the left if the
    role's part has the lower number.
    """
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


@njit(cache=True)
def _cut_graph(
    graph: Roles, part: np.ndarray, place_of_edge: np.ndarray, number: np.ndarray, left: int
) -> tuple[np.ndarray, np.ndarray]:
    """The cut edges as CSR, by their left places."""
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


@njit(cache=True)
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
    """(places,) bool minimum cover by Kőnig's theorem: the left places that alternating paths from unmatched left places do not
    reach, and the right places that they reach.
    """
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
                matched = back[other]  # it is matched, because otherwise the path would augment a maximum matching
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
