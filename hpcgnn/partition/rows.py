"""Moves of nodes between parts so that hybrid plans send fewer rows, after any partitioner (``--objective rows``).

Partitioners minimise cut edges, or the (source, other part) pairs of METIS' ``volume``. What a hybrid plan sends is the
total of minimum vertex covers, one for each pair of parts (``hpcgnn.plan.cover``). From the current covers, the change that
a node's move makes is estimated in the time of a look at its neighbours' rows: rows that only its edges need go, and at its
new place it needs a row for each part in which not every neighbour has one for its part. The estimate keeps all other rows
as they are and so is never below what the best plan sends. Nodes of the boundary are visited in random order, and moves
that cost rows are made by chance, less and less often (annealing). After each batch of passes the covers are counted and
chosen anew by matchings (``rows_cover``); the best partition of all batches is kept, or the one given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import rows_loops
from hpcgnn.partition.rows_cover import minimum_cover, roles_of
from hpcgnn.partition.slabs import Advance

OnBatch = Callable[[np.ndarray, int], None]
_RUN = 16


@dataclass(frozen=True)
class Schedule:
    """How much work: ``passes`` over the boundary, ``batch`` of them before each exact count, and the ``temperature`` in
    rows of the first pass, which falls to 0 in the last."""

    passes: int = 9
    batch: int = 3
    temperature: float = 0.5

    @classmethod
    def of(cls, num_parts: int) -> Schedule:
        """Twice as many passes from 32 parts: that is little to what METIS takes for its ``volume`` then."""
        return cls(passes=9 if num_parts < 32 else 18)


# What annealing starts with costs rows. Where it does not earn them back, as from parts that were good already:
_DOWNHILL = Schedule(passes=4, batch=2, temperature=0.0)


@dataclass(frozen=True)
class RowsResult:
    """``parts`` (N,) int32 and what hybrid plans send in all, before and after; ``batches``: after each batch of passes.

    ``complete`` is whether all passes were made, that is, the time allowed did not matter.
    """

    parts: np.ndarray
    rows_before: int
    rows_after: int
    batches: tuple[int, ...]
    complete: bool

    @property
    def note(self) -> str:
        """What came of it, in one sentence."""
        share = 100 * (1 - self.rows_after / max(self.rows_before, 1))
        text = f"the hybrid plan sends {self.rows_after:,} rows, {self.rows_before:,} before the refinement ({share:.1f} % fewer)"
        return text if self.complete else f"{text}, which the time allowed cut short"


def _ignore(_: int) -> None:
    """Progress that nobody watches."""


def minimise_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    parts: np.ndarray,
    num_parts: int,
    weights: np.ndarray,
    limits: np.ndarray,
    *,
    seed: int = 0,
    seconds: float = np.inf,
    schedule: Schedule | None = None,
    advance: Advance = _ignore,
    on_batch: OnBatch | None = None,
) -> RowsResult:
    """Move nodes so that the minimum vertex covers of all pairs of parts shrink; never more rows than before.

    Args:
        indptr, indices: in-edges by destination, (N+1,) from 0 and (E,); directed or not, self-loops and repeated edges
            allowed. parts: (N,) integers below ``num_parts``.
        weights: (N, C) int64, what is balanced. limits: what a part may weigh, to be broadcast to (P, C). Only moves to
            parts that stay within theirs are made, so that a part over its limit never grows.
        seconds: an allowance, looked at between passes, that also makes annealing faster. Without one the result depends
            on nothing but the other arguments; with one that runs out, on the clock. Loading compiled loops is not in it.
        advance: called with the visits, ``schedule.passes * N`` in all. on_batch: with the parts (a copy) and the exact
            rows after each batch.

    Memory O(edges + parts): about 40 bytes for each direction of an edge. One thread.
    """
    parts, limits = _checked(indptr, indices, parts, num_parts, weights, limits)
    weights = np.ascontiguousarray(weights, dtype=np.int64)
    _load_loops()
    deadline = time.perf_counter() + seconds
    search = _Search(indptr, indices, parts, num_parts, weights, limits, seed)
    plan = schedule or Schedule.of(num_parts)
    complete = search.rows == 0 or search.anneal(plan, deadline, advance, on_batch)
    if search.rows and search.best_rows == search.rows_before:
        complete = search.anneal(_DOWNHILL, deadline, _ignore, on_batch) and complete
    return RowsResult(search.best, search.rows_before, search.best_rows, tuple(search.batches), complete)


def _load_loops() -> None:
    """Compile the loops or load them compiled, by a graph of two nodes: no time that is allowed goes by meanwhile."""
    two, ones = np.arange(2, dtype=np.int32), np.ones((2, 1), dtype=np.int64)
    search = _Search(np.array([0, 0, 1]), two[:1], two, 2, ones, 2 * np.ones((2, 1), dtype=np.int64), 0)
    search.anneal(_DOWNHILL, np.inf, _ignore, None)


def limits_of(parts: np.ndarray, num_parts: int, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """(C,) int64: ``tolerance`` times the mean weight (N, C) of a part, or what the heaviest weighs if that is more."""
    load = _load(parts, num_parts, weights)
    return np.maximum(load.max(axis=0), (tolerance * load.sum(axis=0) / num_parts).astype(np.int64))


def _load(parts: np.ndarray, num_parts: int, weights: np.ndarray) -> np.ndarray:
    """(P, C) int64."""
    load = np.zeros((num_parts, weights.shape[1]), dtype=np.int64)
    np.add.at(load, parts, weights)
    return load


class _Search:
    """Where the search is, and the best that it has seen."""

    def __init__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        parts: np.ndarray,
        num_parts: int,
        weights: np.ndarray,
        limits: np.ndarray,
        seed: int,
    ) -> None:
        self._graph = roles_of(indptr, indices)
        self._num_parts, self._weights, self._limits, self._seed = num_parts, weights, limits, seed
        self._state = rows_loops.room_for_rows(self._graph, num_parts)
        self._work = rows_loops.work_space(self._graph, num_parts)
        self._passes = 0
        self._resting = np.zeros(self._graph.nodes, dtype=np.bool_)
        self.batches: list[int] = []
        self.best = parts
        self._start_from(parts)
        self.rows_before = self.best_rows = self.rows
        self._pass_seconds = 2 * self._count_seconds  # until one was made

    def anneal(self, schedule: Schedule, deadline: float, advance: Advance, on_batch: OnBatch | None) -> bool:
        """Passes from the best partition so far; whether there was time for all of them.

        The temperature is in proportion to how many are left. Where time is short, as far as the last pass tells, fewer
        are left, and it starts lower.
        """
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
        """Passes, with a count after each batch, before the deadline; as much as one more count takes is kept in reserve."""
        time_left = deadline - time.perf_counter() - 2 * self._count_seconds
        return time_left / max(self._pass_seconds + self._count_seconds / batch, 1e-9)

    def _pass(self, temperature: float) -> None:
        started = time.perf_counter()
        random = np.random.default_rng((self._seed, self._passes))
        order = _shuffled(rows_loops.boundary(self._graph, self._part), random)
        rows_loops.move_nodes(
            self._graph,
            self._part,
            self._state,
            order,
            self._weights,
            self._load,
            self._limits,
            temperature,
            int(random.integers(1 << 62)),
            self._resting,
            self._work,
        )
        self._passes += 1
        self._counted = False
        self._pass_seconds = time.perf_counter() - started

    def _count(self, on_batch: OnBatch | None) -> None:
        """Count the rows exactly where they are not, and go on from a cover of that size."""
        if self._counted:
            return
        self._take_cover()
        self.batches.append(self.rows)
        parts = self._part[: self._graph.nodes]
        if on_batch:
            on_batch(parts.copy(), self.rows)
        if self.rows < self.best_rows:
            self.best, self.best_rows = parts.copy(), self.rows

    def _start_from(self, parts: np.ndarray) -> None:
        self._part = np.tile(parts, self._graph.roles)
        self._load = _load(parts, self._num_parts, self._weights)
        self._take_cover()

    def _take_cover(self) -> None:
        started = time.perf_counter()
        cover, self.rows = minimum_cover(self._graph, self._part, self._num_parts)
        rows_loops.take_cover(self._graph, self._part, cover, self._state)
        self._counted, self._count_seconds = True, time.perf_counter() - started


def _shuffled(nodes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Runs of nodes in random order: neighbours often have near numbers, and are then in the processor's caches."""
    runs = -(-nodes.size // _RUN)
    at = (random.permutation(runs)[:, None] * _RUN + np.arange(_RUN)).ravel()
    return nodes[at[at < nodes.size]]


def _checked(
    indptr: np.ndarray,
    indices: np.ndarray,
    parts: np.ndarray,
    num_parts: int,
    weights: np.ndarray,
    limits: np.ndarray,
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
