"""The inner loops that move nodes so that plans send fewer rows, compiled by numba; arrays are modified in place.

``part`` (M,) int32 is each role's part (``rows_cover.Roles``), ``load`` (P, C) int64 what each part weighs. All the while
the rows are a vertex cover of the cut edges, and none of them is redundant: each has a *need*, the number of its edges whose
other end has no row for this one's part. How many rows there are is therefore never less than the best plan sends.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from hpcgnn.partition.rows_cover import Cover, Roles

_PRICE_OF_AN_EDGE = 0.001


class Rows(NamedTuple):
    """The rows of role i at ``begin[i]`` and on, ``held[i]`` of them: the ``part`` that each is for, and its ``need``.

    begin: (M+1,) int64, with room for as many rows as the role has neighbours, at most one a part. Others: int32.
    """

    begin: np.ndarray
    part: np.ndarray
    need: np.ndarray
    held: np.ndarray


class Work(NamedTuple):
    """Work space; between calls all but ``found``, ``start`` and ``bucket`` are zero. (P,) int64 but for ``bucket``."""

    bucket: np.ndarray  # (largest degree,) int32
    found: np.ndarray  # parts of a role's neighbours
    number: np.ndarray  # neighbours in each part
    start: np.ndarray
    agreeing: np.ndarray  # neighbours of a group with a row for each part
    free: np.ndarray  # of a node in each part: groups of neighbours for which no row is needed
    edges: np.ndarray  # of a node: its neighbours in each part
    candidates: np.ndarray


def room_for_rows(graph: Roles, num_parts: int) -> Rows:
    """Without any rows; memory O(edges)."""
    room = np.minimum(np.diff(graph.begin), num_parts)
    begin = np.concatenate(([0], np.cumsum(room)))
    part, need = (np.empty(int(begin[-1]), dtype=np.int32) for _ in range(2))
    return Rows(begin, part, need, np.zeros(room.size, dtype=np.int32))


def work_space(graph: Roles, num_parts: int) -> Work:
    """For :func:`move_nodes`; memory O(parts + largest degree)."""
    largest = int(np.diff(graph.begin).max(initial=0))
    return Work(np.zeros(largest, dtype=np.int32), *(np.zeros(num_parts, dtype=np.int64) for _ in range(7)))


@numba.njit(cache=True, inline="always")
def _find(rows: Rows, role: int, part: int) -> int:
    """Where ``role`` has its row for ``part``, or -1."""
    first = rows.begin[role]
    for at in range(first, first + rows.held[role]):
        if rows.part[at] == part:
            return at
    return -1


@numba.njit(cache=True)
def take_cover(graph: Roles, part: np.ndarray, cover: Cover, rows: Rows) -> None:
    """Make ``rows`` those of the cover."""
    for i in range(graph.begin.size - 1):
        count = 0
        for place in range(cover.begin[i], cover.begin[i + 1]):
            if cover.row[place]:
                rows.part[rows.begin[i] + count] = cover.part[place]
                rows.need[rows.begin[i] + count] = 0
                count += 1
        rows.held[i] = count
    for i in range(graph.begin.size - 1):
        for e in range(graph.begin[i], graph.begin[i + 1]):
            j = graph.other[e]
            if part[j] != part[i]:
                at = _find(rows, i, part[j])
                if at >= 0 and _find(rows, j, part[i]) < 0:
                    rows.need[at] += 1


@numba.njit(cache=True)
def _drop(graph: Roles, part: np.ndarray, rows: Rows, role: int, at: int) -> None:
    """Remove a row that no edge needs: all its edges have rows at their other ends, which are needed the more."""
    theirs, last = rows.part[at], rows.begin[role] + rows.held[role] - 1
    rows.part[at], rows.need[at] = rows.part[last], rows.need[last]
    rows.held[role] -= 1
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        if part[other] == theirs:
            its = _find(rows, other, part[role])
            if its >= 0:
                rows.need[its] += 1


@numba.njit(cache=True)
def _take_out(graph: Roles, part: np.ndarray, rows: Rows, role: int) -> None:
    """Remove the rows of ``role``, and those of its neighbours that nothing else needs."""
    mine = part[role]
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        if part[other] != mine and _find(rows, role, part[other]) < 0:
            at = _find(rows, other, mine)
            rows.need[at] -= 1
            if rows.need[at] == 0:
                _drop(graph, part, rows, other, at)
    rows.held[role] = 0


@numba.njit(cache=True)
def _put_in(graph: Roles, part: np.ndarray, rows: Rows, role: int, work: Work) -> None:
    """Give ``role``, which has none, a row for each part in which a neighbour has none for its part."""
    mine, count = part[role], 0
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        theirs = part[other]
        if theirs != mine and _find(rows, other, mine) < 0:
            if work.number[theirs] == 0:
                work.found[count] = theirs
                count += 1
            work.number[theirs] += 1
    for k in range(count):
        rows.part[rows.begin[role] + k] = work.found[k]
        rows.need[rows.begin[role] + k] = work.number[work.found[k]]
    rows.held[role] = count
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        if part[other] != mine and work.number[part[other]] == 0:
            rows.need[_find(rows, other, mine)] += 1
    for k in range(count):
        work.number[work.found[k]] = 0


@numba.njit(cache=True)
def _group(graph: Roles, part: np.ndarray, role: int, work: Work) -> int:
    """Sort the neighbours into ``bucket`` by part; returns how many parts were ``found``. A group ends at its ``start``."""
    count, begin, end = 0, graph.begin[role], graph.begin[role + 1]
    for e in range(begin, end):
        theirs = part[graph.other[e]]
        if work.number[theirs] == 0:
            work.found[count] = theirs
            count += 1
        work.number[theirs] += 1
    total = 0
    for k in range(count):
        work.start[work.found[k]] = total
        total += work.number[work.found[k]]
    for e in range(begin, end):
        theirs = part[graph.other[e]]
        work.bucket[work.start[theirs]] = graph.other[e]
        work.start[theirs] += 1
    return count


@numba.njit(cache=True)
def _weigh_group(rows: Rows, mine: int, covered: bool, first: int, size: int, work: Work) -> int:
    """Look at neighbours in one part. Returns how many rows they lose when the node leaves its part ``mine``.

    In ``agreeing`` are then as many as ``size`` for the parts for which all have rows. ``covered``: the rows in question
    are not theirs, as the node has one for their part, or is in it.
    """
    lost, alive = 0, 1
    for m in range(size):
        other = work.bucket[first + m]
        if alive == 0 and covered:
            break
        alive = 0
        for at in range(rows.begin[other], rows.begin[other] + rows.held[other]):
            theirs = rows.part[at]
            if theirs == mine:
                lost += 0 if covered or rows.need[at] != 1 else 1
            elif work.agreeing[theirs] == m:
                work.agreeing[theirs] = m + 1
                alive += 1
    return lost


@numba.njit(cache=True)
def _weigh_role(graph: Roles, part: np.ndarray, rows: Rows, role: int, known: int, work: Work) -> tuple[int, int, int]:
    """``(rows that go when the role leaves its part, parts of its neighbours, candidates known)``.

    Adds to ``free`` and ``edges`` of the candidates.
    """
    mine, gone = part[role], rows.held[role]
    count = _group(graph, part, role, work)
    for k in range(count):
        theirs = work.found[k]
        size = work.number[theirs]
        first = work.start[theirs] - size
        if work.free[theirs] == 0:
            work.candidates[known] = theirs
            known += 1
        work.free[theirs] += 1  # there, they are neighbours within a part
        work.edges[theirs] += size
        covered = theirs == mine or _find(rows, role, theirs) >= 0
        gone += _weigh_group(rows, mine, covered, first, size, work)
        leader = work.bucket[first]
        for at in range(rows.begin[leader], rows.begin[leader] + rows.held[leader]):
            target = rows.part[at]
            if target != mine and work.agreeing[target] == size:
                if work.free[target] == 0:
                    work.candidates[known] = target
                    known += 1
                work.free[target] += 1
            work.agreeing[target] = 0
    for k in range(count):
        work.number[work.found[k]] = 0
    return gone, count, known


@numba.njit(cache=True)
def _fits(load: np.ndarray, weight: np.ndarray, limits: np.ndarray, target: int) -> bool:
    fits = True
    for c in range(weight.size):  # what it weighs nothing of may well be over its limit
        fits = fits and (weight[c] == 0 or load[target, c] + weight[c] <= limits[target, c])
    return fits


@numba.njit(cache=True)
def _best_target(
    graph: Roles,
    part: np.ndarray,
    rows: Rows,
    node: int,
    weight: np.ndarray,
    load: np.ndarray,
    limits: np.ndarray,
    work: Work,
) -> tuple[int, float]:
    """``(part, gain)``: where the node's move saves the most rows and weighs not too much, or -1.

    Of equal savings, that with the fewest cut edges: an edge counts for a thousandth of a row. With the rows of all others
    as they are, a moved node needs one for each part where not all its neighbours have one for its part.
    """
    mine, gone, needed, known = part[node], 0, 0, 0
    for r in range(graph.roles):
        more, groups, known = _weigh_role(graph, part, rows, node + r * graph.nodes, known, work)
        gone += more
        needed += groups
    best, best_gain = -1, -np.inf
    for k in range(known):
        target = work.candidates[k]
        if target == mine:
            continue
        gain = gone - needed + work.free[target] + _PRICE_OF_AN_EDGE * (work.edges[target] - work.edges[mine])
        if (gain > best_gain or (gain == best_gain and target < best)) and _fits(load, weight, limits, target):
            best, best_gain = target, gain
    for k in range(known):
        work.free[work.candidates[k]] = 0
        work.edges[work.candidates[k]] = 0
    return best, best_gain


@numba.njit(cache=True)
def boundary(graph: Roles, part: np.ndarray) -> np.ndarray:
    """The nodes with a neighbour in another part, ascending, int32."""
    found = np.empty(graph.nodes, np.int32)
    count = 0
    for node in range(graph.nodes):
        outside = False
        for r in range(graph.roles):
            role = node + r * graph.nodes
            for e in range(graph.begin[role], graph.begin[role + 1]):
                if part[graph.other[e]] != part[node]:
                    outside = True
                    break
        if outside:
            found[count] = node
            count += 1
    return found[:count].copy()


@numba.njit(cache=True)
def _log_uniform(seed: int, node: int) -> float:
    """The logarithm of a number in (0, 1], drawn by ``seed`` and ``node`` (splitmix64)."""
    z = np.uint64(seed) + np.uint64(node + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.log((float(z >> np.uint64(11)) + 1.0) / 9007199254740992.0)


@numba.njit(cache=True)
def move_nodes(
    graph: Roles,
    part: np.ndarray,
    rows: Rows,
    order: np.ndarray,
    weights: np.ndarray,
    load: np.ndarray,
    limits: np.ndarray,
    temperature: float,
    seed: int,
    resting: np.ndarray,
    work: Work,
) -> int:
    """Visit the nodes in ``order`` and move each to its best part if that saves rows, or by chance if it does not.

    A move that costs ``c`` rows is made with probability ``exp(-c / temperature)``, never at temperature 0. ``weights`` is
    (N, C) int64, ``limits`` (P, C) int64 the most that a part may weigh. ``resting`` (N,) bool are nodes to leave out once:
    those whose best move was to cost a row or more. Returns how many nodes moved. Time O(sum over the
    boundary's edges of the other end's rows), space that of ``work``.
    """
    moved = 0
    for node in order:
        if resting[node]:
            resting[node] = False
            continue
        target, gain = _best_target(graph, part, rows, node, weights[node], load, limits, work)
        if target < 0 or gain <= (temperature * _log_uniform(seed, node) if temperature > 0 else 0.0):
            resting[node] = target < 0 or gain <= -1
            continue
        for r in range(graph.roles):
            _take_out(graph, part, rows, node + r * graph.nodes)
        for c in range(load.shape[1]):
            load[part[node], c] -= weights[node, c]
            load[target, c] += weights[node, c]
        for r in range(graph.roles):
            part[node + r * graph.nodes] = target
        for r in range(graph.roles):
            _put_in(graph, part, rows, node + r * graph.nodes, work)
        moved += 1
    return moved
