"""Moves of nodes between parts so that hybrid plans send fewer rows, after any partitioner (``--objective rows``).

Partitioners minimise cut edges, or the (source, other part) pairs of METIS' ``volume``. A hybrid plan sends as many rows as the
minimum vertex covers of all pairs of parts have in total (``hpcgnn.plan.build``). The change by a node's move is estimated from
the current covers, by a look at the rows of its neighbours: rows that only its edges need are saved, and in its new part it
needs a row for each part in which not every neighbour has a row for that part. The estimate leaves all other rows unchanged, so
it is never below the best plan. Nodes of the boundary are visited in random order. Moves that cost rows are made with a
probability that falls over time (simulated annealing). After each batch of passes, the covers are counted and chosen again by
matchings (:mod:`hpcgnn.partition.rows_loops`). The result is the best partition after any batch, or the given one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.problem import TOLERANCE, Advance, Problem, edge_chunks, ignore
from hpcgnn.partition.repair import loads_of
from hpcgnn.partition.rows_loops import (
    boundary,
    minimum_cover,
    move_nodes,
    roles_of,
    room_for_rows,
    take_cover,
    work_space,
)
from hpcgnn.world import raise_on_all_ranks

OnBatch = Callable[[np.ndarray, int], None]
_RUN = 16
# The shortest time limit. On small graphs, for which partitioners take almost no time, the result then depends on the seed only.
_LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class Schedule:
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


@dataclass(frozen=True)
class RowsResult:
    """The result of a refinement. parts: (N,) int32. rows_before, rows_after: rows that hybrid plans send in total. batches:
    these rows after each batch of passes. complete: whether all passes were made, so that the time limit had no effect."""

    parts: np.ndarray
    rows_before: int
    rows_after: int
    batches: tuple[int, ...]
    complete: bool

    @property
    def note(self) -> str:
        """The result in one sentence."""
        share = 100 * (1 - self.rows_after / max(self.rows_before, 1))
        before = f"instead of {self.rows_before:,} before the refinement ({share:.1f} % fewer)"
        text = f"the hybrid plan sends {self.rows_after:,} rows, {before}"
        return text if self.complete else f"{text}; its time limit ended the refinement early"


def minimise_rows(
    indptr: np.ndarray, indices: np.ndarray, parts: np.ndarray, num_parts: int, weights: np.ndarray,
    limits: np.ndarray, *, seed: int = 0, seconds: float = np.inf, schedule: Schedule | None = None,
    advance: Advance = ignore, on_batch: OnBatch | None = None,
) -> RowsResult:  # fmt: skip
    """Move nodes so that the minimum vertex covers of all pairs of parts shrink. The result never has more rows than before.

    It runs in one thread, and takes O(edges + parts) memory: about 40 bytes for each direction of an edge.

    Args:
        indptr, indices: in-edges by destination, (N+1,) from 0 and (E,); directed or not; self-loops and parallel edges are
            allowed. parts: (N,) integers below ``num_parts``. weights: (N, C) int64 quantities to balance.
        limits: the largest weights of a part, to be broadcast to (P, C). A part over its limit never grows.
        seconds: a time limit, checked between passes; a short one also makes annealing cool faster. If it is reached, the
            result depends on the clock, else on the other arguments only. The time for loading compiled loops is not included.
        advance: called with numbers of visited nodes, ``schedule.passes * N`` in total.
        on_batch: called after each batch with a copy of the parts and the exact number of rows.
    """
    parts, limits = _checked(indptr, indices, parts, num_parts, weights, limits)
    _load_loops()
    deadline = time.perf_counter() + seconds
    search = _Search(indptr, indices, parts, np.ascontiguousarray(weights, dtype=np.int64), limits, seed)
    complete = search.rows == 0 or search.anneal(schedule or Schedule.of(num_parts), deadline, advance, on_batch)
    if search.rows and search.best_rows == search.rows_before:
        complete = search.anneal(_DOWNHILL, deadline, ignore, on_batch) and complete
    return RowsResult(search.best, search.rows_before, search.best_rows, tuple(search.batches), complete)


def _load_loops() -> None:
    """Load the loops, or compile them, by a run on a graph of two nodes, so that this takes none of the time limit."""
    two, ones = np.arange(2, dtype=np.int32), np.ones((2, 1), dtype=np.int64)
    search = _Search(np.array([0, 0, 1]), two[:1], two, ones, 2 * ones, 0)
    search.anneal(_DOWNHILL, np.inf, ignore, None)


def limits_of(parts: np.ndarray, num_parts: int, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """(C,) int64: ``tolerance`` times the mean of ``weights`` (N, C) of a part, or the heaviest part's if that is more."""
    load = loads_of(parts, weights, num_parts)
    return np.maximum(load.max(axis=0), (tolerance * load.sum(axis=0) / num_parts).astype(np.int64))


class _Search:
    """The present partition of the search, and the best one so far."""

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
        self.batches: list[int] = []
        self.best = parts
        self._start_from(parts)
        self.rows_before = self.best_rows = self.rows
        self._pass_seconds = 2 * self._count_seconds  # an estimate until the first pass

    def anneal(self, schedule: Schedule, deadline: float, advance: Advance, on_batch: OnBatch | None) -> bool:
        """Make passes from the best partition so far, and return whether there was time for all of them. The temperature is
        proportional to the number of remaining passes, which is lower if the last pass shows that time will not suffice."""
        if self.rows != self.best_rows:
            self._start_from(self.best)
        for done in range(schedule.passes):
            left = min(schedule.passes - done, self._affordable(deadline, schedule.batch))
            if left < 1:
                self._count(on_batch)
                return False
            self._pass(schedule.temperature * (left - 1) / max(schedule.passes - 1, 1))
            advance(self._graph.nodes)
            if (done + 1) % schedule.batch == 0 or done + 1 == schedule.passes:
                self._count(on_batch)
        return True

    def _affordable(self, deadline: float, batch: int) -> float:
        """The number of passes that fit before the deadline, each with its share of a count; one more count is in reserve."""
        time_left = deadline - time.perf_counter() - 2 * self._count_seconds
        return time_left / max(self._pass_seconds + self._count_seconds / batch, 1e-9)

    def _pass(self, temperature: float) -> None:
        started = time.perf_counter()
        random = np.random.default_rng((self._seed, self._passes))
        order = _shuffled(boundary(self._graph, self._part), random)
        move_nodes(
            self._graph, self._part, self._state, order, self._weights, self._load, self._limits,
            temperature, int(random.integers(1 << 62)), self._resting, self._work,
        )  # fmt: skip
        self._passes += 1
        self._counted = False
        self._pass_seconds = time.perf_counter() - started

    def _count(self, on_batch: OnBatch | None) -> None:
        """Count the rows exactly, unless they are counted already, and continue with a cover of that size."""
        if self._counted:
            return
        self._use_cover()
        self.batches.append(self.rows)
        parts = self._part[: self._graph.nodes]
        if on_batch:
            on_batch(parts.copy(), self.rows)
        if self.rows < self.best_rows:
            self.best, self.best_rows = parts.copy(), self.rows

    def _start_from(self, parts: np.ndarray) -> None:
        self._part = np.tile(parts, self._graph.roles)
        self._load = loads_of(parts, self._weights, self._num_parts)
        self._use_cover()

    def _use_cover(self) -> None:
        started = time.perf_counter()
        cover, self.rows = minimum_cover(self._graph, self._part, self._num_parts)
        take_cover(self._graph, self._part, cover, self._state)
        self._counted, self._count_seconds = True, time.perf_counter() - started


def _shuffled(nodes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Runs of consecutive nodes in random order: neighbours often have close numbers, and are then in the processor's
    caches."""
    runs = -(-nodes.size // _RUN)
    at = (random.permutation(runs)[:, None] * _RUN + np.arange(_RUN)).ravel()
    return nodes[at[at < nodes.size]]


def _checked(
    indptr: np.ndarray, indices: np.ndarray, parts: np.ndarray, num_parts: int, weights: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``parts`` as int32 and ``limits`` as (P, C) int64. Raises :class:`HpcgnnError`."""
    nodes = indptr.size - 1
    if parts.shape != (nodes,) or weights.ndim != 2 or weights.shape[0] != nodes:
        raise HpcgnnError(
            f"there are {nodes} nodes, but parts of shape {parts.shape} and weights of shape {weights.shape}: give each"
            " node one part and one row of weights"
        )
    if nodes and (parts.min() < 0 or parts.max() >= num_parts):
        raise HpcgnnError(f"nodes lie in parts {parts.min()} to {parts.max()}: number them from 0 to {num_parts - 1}")
    if indptr[0] or indptr[-1] != indices.size or (indices.size and not 0 <= indices.min() <= indices.max() < nodes):
        raise HpcgnnError(f"the edges are not those of a graph of {nodes} nodes: check indptr and indices")
    try:
        limits = np.broadcast_to(np.asarray(limits, dtype=np.int64), (num_parts, weights.shape[1]))
    except ValueError:
        raise HpcgnnError(
            f"limits of shape {np.shape(limits)} do not fit {num_parts} parts and {weights.shape[1]} quantities"
        ) from None
    return np.ascontiguousarray(parts, dtype=np.int32), np.ascontiguousarray(limits)


def refine_rows(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> tuple[np.ndarray, str]:
    """``(better parts of this rank's nodes (n,) int32, a sentence about the result)``. Collective. It takes at most
    ``seconds``, the partitioner's time, or one second if that is more. No part exceeds the tolerance or, in a quantity that
    was balanced worse, the heaviest part so far. Rank 0 holds all edges, about 40 bytes for each direction, while the others
    wait."""
    world = problem.world
    everything = np.zeros(world.size, dtype=np.int64)
    everything[0] = parts.size
    gathered, _ = world.alltoallv(parts.astype(np.int32, copy=False), everything)
    counts, note = np.zeros(world.size, dtype=np.int64), ""
    with raise_on_all_ranks(world, "refine the partition"):
        if world.rank == 0:
            result = _refine_all(problem, gathered, max(seconds, _LEAST_SECONDS), advance)
            gathered, note, counts = result.parts, result.note, np.diff(problem.slab.bounds)
    return world.alltoallv(gathered, counts)[0], world.broadcast(note)


def refine_steps(num_nodes: int, num_parts: int) -> int:
    """The number of steps by which :func:`refine_rows` advances in total."""
    return Schedule.of(num_parts).passes * num_nodes


def _refine_all(problem: Problem, parts: np.ndarray, seconds: float, advance: Advance) -> RowsResult:
    reader, num_parts = problem.reader, problem.options.num_parts
    nodes, indptr = reader.meta.num_nodes, reader.indptr(0, reader.meta.num_nodes)
    indices = np.empty(reader.meta.num_edges, dtype=np.int32 if nodes < 1 << 31 else np.int64)
    for chunk in edge_chunks(reader, 0, nodes):
        indices[chunk.indptr[0] : chunk.indptr[-1]] = chunk.sources
    weights = problem.balance.weights(reader, 0, indptr)
    # The weights count each node as one more edge; the number of edges alone is balanced as well.
    if "edges" in problem.balance.names:
        weights = np.column_stack((weights, np.diff(indptr)))
    given = indptr, indices, parts, num_parts, weights, limits_of(parts, num_parts, weights, TOLERANCE)
    return minimise_rows(*given, seed=problem.options.seed, seconds=seconds, advance=advance)
