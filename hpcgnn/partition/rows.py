"""Moves of nodes between parts so that hybrid plans send fewer rows, after any partitioner (``--objective rows``).

A hybrid plan sends as many rows as the minimum vertex covers of all pairs of parts have in total (:mod:`hpcgnn.plan.build`).
A node has a *role* as a source and another one as a destination. Every edge joins the first role of its source with the second
role of its destination. If these are in different parts, one of them needs a row for the other's part: the source sends its own
row there (*post*), or the destination receives a sum from there (*pre*). A *place* is a role together with another part in which
it has neighbours; the places with rows are a vertex cover of the cut edges. If a graph has both directions of every edge, the
rows from part b to part a mirror those from a to b, so one role for each node suffices, and its rows count twice.

The change by a node's move is estimated from the rows of its neighbours: rows that only its edges need are saved, and in its
new part it needs a row for each part in which not every neighbour has a row for that part. All other rows stay, so that they
are a cover, and none of them is redundant: each has a *need*, the number of its edges whose other end has no row for the part
of this end. Nodes of the boundary are visited in random order. Moves that cost rows are made with a probability that falls over
time (simulated annealing). After each batch of passes, the covers are counted and chosen again by a matching. The result is the
best partition after any batch, or the given one.

The loops, compiled by numba, modify arrays in place. part: (M,) int32 part of each role. load: (P, C) int64 weight of each part.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.compiled import njit
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.multilevel import fits
from hpcgnn.partition.problem import TOLERANCE, Advance, Problem, ignore, simple_graph
from hpcgnn.partition.repair import loads_of
from hpcgnn.plan.build import sources_in_cover
from hpcgnn.plan.plan import offsets_of

_RUN = 16
# The shortest time limit. On small graphs, for which partitioners take almost no time, the result then depends on the seed only.
_LEAST_SECONDS = 1.0


class Schedule(NamedTuple):
    """The amount of work. passes: over the boundary. batch: number of passes before each exact count. temperature: in rows, of
    the first pass; it falls to 0 in the last pass."""

    passes: int = 9
    batch: int = 3
    temperature: float = 0.5

    @classmethod
    def of(cls, num_parts: int) -> Schedule:
        """The schedule for a number of parts: twice as many passes from 32 parts on, still less time than METIS' ``volume``."""
        return cls(passes=9 if num_parts < 32 else 18)


# Annealing first costs rows. If it does not regain them, for instance because the parts were good already, this is used:
_DOWNHILL = Schedule(passes=4, batch=2, temperature=0.0)


def minimise_rows(
    indptr: np.ndarray, indices: np.ndarray, parts: np.ndarray, num_parts: int, weights: np.ndarray,
    limits: np.ndarray, *, seed: int = 0, seconds: float = np.inf, schedule: Schedule | None = None,
    advance: Advance = ignore,
) -> Search:  # fmt: skip
    """Move nodes so that the minimum vertex covers of all pairs of parts shrink; the search has the best parts. These never have
    more rows than before. It runs in one thread, and takes O(edges + parts) memory: about 40 bytes for each direction of an edge.

    Args:
        indptr, indices: in-edges by destination, (N+1,) from 0 and (E,); directed or not; self-loops and parallel edges are
            allowed. parts: (N,) integers below ``num_parts``. weights: (N, C) int64 quantities to balance.
        limits: the largest weights of a part, to be broadcast to (P, C). A part over its limit never grows.
        seconds: of this thread on a core, so that other work of the machine changes nothing: a time limit, checked between
            passes; a short one also makes annealing cool faster. If it is reached, the result depends on the clock, else on the
            other arguments only. The time for loading compiled loops is not included.
        advance: called with numbers of visited nodes, ``schedule.passes * N`` in total.
    """
    limits = np.ascontiguousarray(np.broadcast_to(limits, (num_parts, weights.shape[1])), dtype=np.int64)
    _load_loops()
    deadline = time.thread_time() + seconds
    weights = np.ascontiguousarray(weights, dtype=np.int64)
    search = Search(indptr, indices, np.ascontiguousarray(parts, dtype=np.int32), weights, limits, seed)
    if search.rows_before:
        search.anneal(schedule or Schedule.of(num_parts), deadline, advance)
        if search.rows_after == search.rows_before:
            search.anneal(_DOWNHILL, deadline)
    return search


def _load_loops() -> None:
    """Load the loops, or compile them, by a run on a graph of two nodes, so that this takes none of the time limit."""
    two, ones = np.arange(2, dtype=np.int32), np.ones((2, 1), dtype=np.int64)
    Search(np.array([0, 0, 1]), two[:1], two, ones, 2 * ones, 0).anneal(_DOWNHILL, np.inf)


def limits_of(parts: np.ndarray, num_parts: int, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """(C,) int64: ``tolerance`` times the mean of ``weights`` (N, C) of a part, or the heaviest part's if that is more."""
    load = loads_of(parts, weights, num_parts)
    return np.maximum(load.max(axis=0), (tolerance * load.sum(axis=0) / num_parts).astype(np.int64))


class Search:
    """The present partition of the search, and the best one so far.

    parts: (N,) int32, the best. rows_before, rows_after: rows that hybrid plans send in total, before the search and with
    ``parts``. batches: these rows after each batch of passes. complete: whether all passes were made, so that the time limit
    had no effect.
    """

    def __init__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        parts: np.ndarray,
        weights: np.ndarray,
        limits: np.ndarray,
        seed: int,
    ) -> None:
        self._graph, self._num_parts = roles_of(indptr, indices), limits.shape[0]
        self._weights, self._limits, self._seed = weights, limits, seed
        self._state = room_for_rows(self._graph, self._num_parts)
        self._work = work_space(self._graph, self._num_parts)
        self._passes = 0
        self._resting = np.zeros(self._graph.nodes, dtype=np.bool_)
        self.parts, self.batches, self.complete = parts, list[int](), True
        self._start_from(parts)
        self.rows_before = self.rows_after = self._rows
        self._pass_seconds = 2 * self._count_seconds  # an estimate until the first pass

    @property
    def note(self) -> str:
        """The result in one sentence."""
        share = 100 * (1 - self.rows_after / max(self.rows_before, 1))
        before = f"instead of {self.rows_before:,} before the refinement ({share:.1f} % fewer)"
        text = f"the hybrid plan sends {self.rows_after:,} rows, {before}"
        return text if self.complete else f"{text}; its time limit ended the refinement early"

    def anneal(self, schedule: Schedule, deadline: float, advance: Advance = ignore) -> None:
        """Make passes from the best partition so far, as far as there is time. The temperature is proportional to the number of
        passes that are left, fewer if the last pass shows that time will not suffice."""
        if self._rows != self.rows_after:
            self._start_from(self.parts)
        for done in range(schedule.passes):
            # each pass with its share of a count; one more count is in reserve
            time_left = deadline - time.thread_time() - 2 * self._count_seconds
            affordable = time_left / max(self._pass_seconds + self._count_seconds / schedule.batch, 1e-9)
            left = min(schedule.passes - done, affordable)
            if left < 1:
                self.complete = False
                break
            self._pass(schedule.temperature * (left - 1) / max(schedule.passes - 1, 1))
            advance(self._graph.nodes)
            if (done + 1) % schedule.batch == 0:
                self._count()
        self._count()

    def _pass(self, temperature: float) -> None:
        started = time.thread_time()
        random = np.random.default_rng((self._seed, self._passes))
        order = _shuffled(boundary(self._graph, self._part), random)
        move_nodes(
            self._graph, self._part, self._state, order, self._weights, self._load, self._limits,
            temperature, int(random.integers(1 << 62)), self._resting, self._work,
        )  # fmt: skip
        self._passes += 1
        self._counted = False
        self._pass_seconds = time.thread_time() - started

    def _count(self) -> None:
        """Count the rows exactly, unless they are counted already, and continue with a cover of that size."""
        if not self._counted:
            self._use_cover()
            self.batches.append(self._rows)
            if self._rows < self.rows_after:
                self.parts, self.rows_after = self._part[: self._graph.nodes].copy(), self._rows

    def _start_from(self, parts: np.ndarray) -> None:
        self._part = np.tile(parts, self._graph.roles)
        self._load = loads_of(parts, self._weights, self._num_parts)
        self._use_cover()

    def _use_cover(self) -> None:
        started = time.thread_time()
        cover, self._rows = minimum_cover(self._graph, self._part, self._num_parts)
        take_cover(self._graph, self._part, cover, self._state)
        self._counted, self._count_seconds = True, time.thread_time() - started


def _shuffled(nodes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Runs of consecutive nodes in random order: neighbours often have close numbers, and are then in the caches."""
    runs = -(-nodes.size // _RUN)
    at = (random.permutation(runs)[:, None] * _RUN + np.arange(_RUN)).ravel()
    return nodes[at[at < nodes.size]]


def refine_rows(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> tuple[np.ndarray, str]:
    """``(better parts of this rank's nodes (n,) int32, a sentence about the result)``. Collective. It takes at most ``seconds``
    of a core, the partitioner's time, or one second if that is more. No part exceeds the tolerance or, in a quantity that was
    balanced worse, the heaviest part so far. Rank 0 holds all edges, about 40 bytes for each direction, while the others wait."""
    gathered, note = problem.world.to_rank_0(parts.astype(np.int32, copy=False)), ""

    def refined() -> np.ndarray:
        nonlocal note
        search = _refine_all(problem, gathered, max(seconds, _LEAST_SECONDS), advance)
        note = search.note
        return search.parts

    return problem.on_rank_0("refine the partition", refined), problem.world.broadcast(note)


def _refine_all(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> Search:
    reader, num_parts = problem.reader, problem.options.num_parts
    indptr, indices = problem.all_edges()
    weights = problem.balance.weights(reader, 0, indptr)
    # The weights count each node as one more edge; the number of edges alone is balanced as well.
    if "edges" in problem.balance.names:
        weights = np.column_stack((weights, np.diff(indptr)))
    if "auto" in problem.options.balance:  # parts that have equal numbers of nodes keep them
        weights = np.column_stack((weights, np.ones(len(weights), np.int64)))
    given = indptr, indices, parts, num_parts, weights, limits_of(parts, num_parts, weights, TOLERANCE)
    return minimise_rows(*given, seed=problem.options.seed, seconds=seconds, advance=advance)


_PRICE_OF_AN_EDGE = 0.001


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
    whether the place has a row."""

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
    into = simple_graph(indptr, indices)
    out = into.T.tocsr()
    out.sort_indices()
    if np.array_equal(into.indptr, out.indptr) and np.array_equal(into.indices, out.indices):
        begin, other = into.indptr.astype(np.int64), into.indices
        return Roles(begin, other, _twins(begin, other), nodes, 1)
    begin = np.concatenate((out.indptr, into.indptr[1:].astype(np.int64) + out.indptr[-1]))
    other = np.concatenate((out.indices + np.int32(nodes), into.indices))
    return Roles(begin, other, _twins(begin, other), nodes, 2)


def _twins(begin: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(m,) int32 positions of each edge at its other end: an order by other ends keeps, at each of them, the order of roles."""
    size = begin.size - 1
    return sp.csr_matrix((np.arange(other.size, dtype=np.int32), other, begin), (size, size)).tocsc().data


def minimum_cover(graph: Roles, part: np.ndarray, num_parts: int) -> tuple[Cover, int]:
    """A minimum vertex cover, and the number of rows that a plan with this cover sends. part: (M,) int32 part of each role.
    Takes O(edges) memory, and the time of a matching."""
    begin, of_part, place_of_edge = _places(graph, part, num_parts)
    # A place is on the left if the role's part has the lower number; each cut edge is taken from there.
    cut = np.flatnonzero(np.repeat(part, np.diff(graph.begin)) < part[graph.other])
    left, right = place_of_edge[cut], place_of_edge[graph.twin[cut]]
    row = sources_in_cover(left, right, (of_part.size, of_part.size))
    row[right[~row[left]]] = True
    return Cover(begin, of_part, row), int(np.count_nonzero(row)) * (2 // graph.roles)


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


class Rows(NamedTuple):
    """The rows of all roles. Those of role i are the ``held[i]`` rows from ``begin[i]`` on; each has the ``part`` to which it
    is sent, and its ``need``. begin: (M+1,) int64, with room for one row for each neighbour, but at most one for each part. The
    other arrays are int32."""

    begin: np.ndarray
    part: np.ndarray
    need: np.ndarray
    held: np.ndarray


class Work(NamedTuple):
    """Work space. Between calls, all arrays but ``found``, ``start`` and ``bucket`` are zero. All are (P,) int64, except
    ``bucket``."""

    bucket: np.ndarray  # (largest degree,) int32
    found: np.ndarray  # parts of the neighbours of a role
    number: np.ndarray  # number of neighbours in each part
    start: np.ndarray
    agreeing: np.ndarray  # number of neighbours of a group with a row for each part
    free: np.ndarray  # number of groups of a node's neighbours that need no row if the node is in each part
    edges: np.ndarray  # number of a node's neighbours in each part
    candidates: np.ndarray


def room_for_rows(graph: Roles, num_parts: int) -> Rows:
    """Space for rows, of which there are none yet. Takes O(edges) memory."""
    room = np.minimum(np.diff(graph.begin), num_parts)
    begin = offsets_of(room)
    part, need = (np.empty(int(begin[-1]), dtype=np.int32) for _ in range(2))
    return Rows(begin, part, need, np.zeros(room.size, dtype=np.int32))


def work_space(graph: Roles, num_parts: int) -> Work:
    """The work space of :func:`move_nodes`, of O(parts + largest degree) memory."""
    largest = int(np.diff(graph.begin).max(initial=0))
    return Work(np.zeros(largest, dtype=np.int32), *(np.zeros(num_parts, dtype=np.int64) for _ in range(7)))


@njit(cache=True, inline="always")
def _find(rows: Rows, role: int, part: int) -> int:
    """The index of the row of ``role`` for ``part``, or -1."""
    first = rows.begin[role]
    for at in range(first, first + rows.held[role]):
        if rows.part[at] == part:
            return at
    return -1


@njit(cache=True)
def take_cover(graph: Roles, part: np.ndarray, cover: Cover, rows: Rows) -> None:
    """Replace ``rows`` by those of the cover."""
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


@njit(cache=True)
def _drop(graph: Roles, part: np.ndarray, rows: Rows, role: int, at: int) -> None:
    """Remove a row that no edge needs. The rows at the other ends of its edges are then needed by one more edge each."""
    theirs, last = rows.part[at], rows.begin[role] + rows.held[role] - 1
    rows.part[at], rows.need[at] = rows.part[last], rows.need[last]
    rows.held[role] -= 1
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        if part[other] == theirs:
            its = _find(rows, other, part[role])
            if its >= 0:
                rows.need[its] += 1


@njit(cache=True)
def _take_out(graph: Roles, part: np.ndarray, rows: Rows, role: int) -> None:
    """Remove the rows of ``role``, and those rows of its neighbours that no other edge needs."""
    mine = part[role]
    for e in range(graph.begin[role], graph.begin[role + 1]):
        other = graph.other[e]
        if part[other] != mine and _find(rows, role, part[other]) < 0:
            at = _find(rows, other, mine)
            rows.need[at] -= 1
            if rows.need[at] == 0:
                _drop(graph, part, rows, other, at)
    rows.held[role] = 0


@njit(cache=True)
def _put_in(graph: Roles, part: np.ndarray, rows: Rows, role: int, work: Work) -> None:
    """Give ``role``, which has no rows, a row for each part in which some neighbour has no row for the part of ``role``."""
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


@njit(cache=True)
def _group(graph: Roles, part: np.ndarray, role: int, work: Work) -> int:
    """Sort the neighbours into ``bucket`` by part; returns the number of parts ``found``. ``start`` of a part ends its group."""
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


@njit(cache=True)
def _weigh_group(rows: Rows, mine: int, covered: bool, first: int, size: int, work: Work) -> int:
    """Examine the ``size`` neighbours in one part, and return the number of their rows that become redundant when the node
    leaves its part ``mine``. ``agreeing`` then equals ``size`` for the parts for which all of them have rows. covered: these
    neighbours need no row for ``mine``, because the node has a row for their part or is in it."""
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


@njit(cache=True)
def _weigh_role(graph: Roles, part: np.ndarray, rows: Rows, role: int, known: int, work: Work) -> tuple[int, int, int]:
    """``(rows saved when the role leaves its part, parts of its neighbours, candidates)``; adds to their ``free``, ``edges``."""
    mine, gone = part[role], rows.held[role]
    count = _group(graph, part, role, work)
    for k in range(count):
        theirs = work.found[k]
        size = work.number[theirs]
        first = work.start[theirs] - size
        if work.free[theirs] == 0:
            work.candidates[known] = theirs
            known += 1
        work.free[theirs] += 1  # in that part, they would be neighbours within a part
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


@njit(cache=True)
def _best_target(
    graph: Roles, part: np.ndarray, rows: Rows, node: int, weight: np.ndarray, load: np.ndarray, limits: np.ndarray,
    work: Work,
) -> tuple[int, float]:  # fmt: skip
    """``(part, gain)`` of the move of a node that saves most rows and stays within the limits, else part -1. An edge that is
    cut counts as a thousandth of a row. With the rows of all other nodes unchanged, a moved node needs a row for each part
    in which not all of its neighbours have a row for its part."""
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
        if (gain > best_gain or (gain == best_gain and target < best)) and fits(load[target], weight, limits[target]):
            best, best_gain = target, gain
    for k in range(known):
        work.free[work.candidates[k]] = 0
        work.edges[work.candidates[k]] = 0
    return best, best_gain


@njit(cache=True)
def boundary(graph: Roles, part: np.ndarray) -> np.ndarray:
    """The nodes with a neighbour in another part, ascending, int32."""
    found = np.zeros(graph.nodes, np.bool_)
    for role in range(part.size):
        for e in range(graph.begin[role], graph.begin[role + 1]):
            if part[graph.other[e]] != part[role]:
                found[role % graph.nodes] = True
                break
    return np.flatnonzero(found).astype(np.int32)


@njit(cache=True)
def _log_uniform(seed: int, node: int) -> float:  # by splitmix64
    z = np.uint64(seed) + np.uint64(node + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.log((float(z >> np.uint64(11)) + 1.0) / 9007199254740992.0)


@njit(cache=True)
def move_nodes(
    graph: Roles, part: np.ndarray, rows: Rows, order: np.ndarray, weights: np.ndarray, load: np.ndarray,
    limits: np.ndarray, temperature: float, seed: int, resting: np.ndarray, work: Work,
) -> int:  # fmt: skip
    """Visit the nodes in ``order``, and move each to its best part; return the number of moves. A move that costs ``c`` rows
    is made with the probability ``exp(-c / temperature)``, and never at temperature 0. Takes O(sum over the boundary's edges
    of the number of rows at the other end) time. weights: (N, C) int64. limits: (P, C) int64 largest weights of the parts.
    resting: (N,) bool, nodes to skip once, because their best move would have cost a row or more."""
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
