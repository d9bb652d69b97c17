"""Moves nodes out of parts that are too heavy in some quantity, at the lowest cost in cut edges: for partitioners that
balance only one weight, or that exceed the tolerance. With several quantities this is a packing problem, so if nodes are few
and heavy, parts may stay over their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.partition.problem import add_up

Rows = Callable[[], Iterable[tuple[int, np.ndarray, np.ndarray]]]
_ROUNDS = 24
_POLISHING_ROUNDS = 8


def limits_of(totals: np.ndarray, num_parts: int, tolerance: float) -> np.ndarray:
    """(C,) int64: ``tolerance`` times the mean of each quantity, or the mean rounded up if that is more."""
    return np.maximum(np.floor(tolerance * totals / num_parts), np.ceil(totals / num_parts)).astype(np.int64)


def loads_of(parts: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """(P, C) int64: the weight of each part. weights: (N, C)."""
    loads = np.zeros((num_parts, weights.shape[1]), dtype=np.int64)
    add_up(parts, weights, loads)
    return loads


def balance_parts(rows: Rows, parts: np.ndarray, weights: np.ndarray, limits: np.ndarray, num_parts: int) -> np.ndarray:
    """Move nodes until no part weighs more than ``limits`` (C,), as far as possible, and return the loads (P, C). rows: a
    function that starts an iteration over ``(first node, indptr from 0, neighbours)`` of all nodes. parts: (N,) int32,
    modified. weights: (N, C) int64. The same input gives the same parts.

    In a round, each node of an overloaded part looks for the part with room that has most of its neighbours, or goes to the
    next part with room. Those move first that cost the fewest cut edges for the weight that they remove. When that no longer
    helps, a node may also move to a part that becomes overloaded by less than its own part was.
    """
    loads = loads_of(parts, weights, num_parts)
    excess = excess_of(loads, limits)
    stuck = 0
    for _ in range(_ROUNDS):
        if excess == 0 or stuck == 2:
            break
        targets = np.full(parts.size, -1, dtype=np.int32)
        scores = np.zeros(parts.size, dtype=np.float64)
        affinity = np.zeros(num_parts, dtype=np.int64)
        for first, indptr, neighbours in rows():
            _propose(first, indptr, neighbours, parts, weights, loads, limits, affinity, targets, scores)
        candidates = np.flatnonzero(targets >= 0)
        order = candidates[np.argsort(scores[candidates], kind="stable")]
        _move(order, targets, parts, weights, loads, limits, stuck > 0)
        before, excess = excess, excess_of(loads, limits)
        stuck = 0 if excess < before * 0.99 else stuck + 1
    return loads


def polish(rows: Rows, parts: np.ndarray, weights: np.ndarray, limits: np.ndarray, num_parts: int) -> None:
    """Move nodes to the part with most of their neighbours, if that part has room; modifies ``parts``. This is label propagation
    in the order of the nodes, a few times. No move adds a cut edge. Arguments are those of :func:`balance_parts`."""
    loads = loads_of(parts, weights, num_parts)
    affinity = np.zeros(num_parts, dtype=np.int64)
    for _ in range(_POLISHING_ROUNDS):
        moved = 0
        for first, indptr, neighbours in rows():
            moved += _follow_neighbours(first, indptr, neighbours, parts, weights, loads, limits, affinity)
        if moved < parts.size / 1000:
            break


def excess_of(loads: np.ndarray, limits: np.ndarray) -> float:
    """The sum over parts and quantities of the load above the limit, in units of the limit."""
    return float((np.maximum(loads - limits, 0) / np.maximum(limits, 1)).sum())


@njit(cache=True)
def _relief(load: np.ndarray, weight: np.ndarray, limits: np.ndarray) -> float:
    """The decrease of a part's load above its limits if a node leaves it."""
    relief = 0.0
    for c in range(limits.size):
        if load[c] > limits[c]:
            relief += min(weight[c], load[c] - limits[c]) / max(limits[c], 1)
    return relief


@njit(cache=True)
def _burden(load: np.ndarray, weight: np.ndarray, limits: np.ndarray) -> float:
    """The increase of a part's load above its limits if a node joins it."""
    burden = 0.0
    for c in range(limits.size):
        burden += max(0, min(weight[c], load[c] + weight[c] - limits[c])) / max(limits[c], 1)
    return burden


@njit(cache=True)
def _next_with_room(weight: np.ndarray, loads: np.ndarray, limits: np.ndarray, start: int) -> int:
    """The first part from ``start`` on, cyclically, that has room for a node, else the part whose excess would grow least."""
    best, least = -1, np.inf
    for k in range(loads.shape[0]):
        part = (start + k) % loads.shape[0]
        burden = _burden(loads[part], weight, limits)
        if burden < least:
            best, least = part, burden
        if burden == 0:
            break
    return best


@njit(cache=True)
def _propose(
    first: int, indptr: np.ndarray, neighbours: np.ndarray, parts: np.ndarray, weights: np.ndarray,
    loads: np.ndarray, limits: np.ndarray, affinity: np.ndarray, targets: np.ndarray, scores: np.ndarray,
) -> None:  # fmt: skip
    """Propose ``targets`` for the nodes of these rows that are in overloaded parts, where P stands for any part, with their
    ``scores``, the cut edges gained for each unit of relief."""
    for row in range(indptr.size - 1):
        node = first + row
        own = parts[node]
        relief = _relief(loads[own], weights[node], limits)
        if relief <= 0:
            continue
        mine = neighbours[indptr[row] : indptr[row + 1]]
        for other in mine:
            affinity[parts[other]] += 1
        best, most = loads.shape[0], 0
        for other in mine:
            part = parts[other]
            if part == own or affinity[part] < most or (affinity[part] == most and part >= best):
                continue
            if _burden(loads[part], weights[node], limits) == 0:
                best, most = part, affinity[part]
        targets[node], scores[node] = best, (affinity[own] - most) / relief
        for other in mine:
            affinity[parts[other]] = 0


@njit(cache=True)
def _move(
    order: np.ndarray, targets: np.ndarray, parts: np.ndarray, weights: np.ndarray, loads: np.ndarray,
    limits: np.ndarray, swapping: bool,
) -> None:  # fmt: skip
    """Move the nodes of ``order`` as long as their part is over a limit and the next is not; modifies parts and loads.
    swapping: also allow moves to a part that then exceeds a limit by less, which makes room for other nodes."""
    nearby = 0
    for node in order:
        own, target = parts[node], targets[node]
        relief = _relief(loads[own], weights[node], limits)
        if relief <= 0:
            continue
        if target == loads.shape[0] or _burden(loads[target], weights[node], limits) > 0:
            target = nearby = _next_with_room(weights[node], loads, limits, nearby)
        burden = _burden(loads[target], weights[node], limits)
        if target == own or burden > (0.9 * relief if swapping else 0.0):
            continue
        for c in range(limits.size):
            loads[own, c] -= weights[node, c]
            loads[target, c] += weights[node, c]
        parts[node] = target


@njit(cache=True)
def _follow_neighbours(
    first: int, indptr: np.ndarray, neighbours: np.ndarray, parts: np.ndarray, weights: np.ndarray,
    loads: np.ndarray, limits: np.ndarray, affinity: np.ndarray,
) -> int:  # fmt: skip
    """Move each node to the part with most of its neighbours that has room; returns the number of moved nodes."""
    moved = 0
    for row in range(indptr.size - 1):
        node = first + row
        own = parts[node]
        mine = neighbours[indptr[row] : indptr[row + 1]]
        for other in mine:
            affinity[parts[other]] += 1
        best, most = own, affinity[own]
        for other in mine:
            part = parts[other]
            if affinity[part] > most and _burden(loads[part], weights[node], limits) == 0:
                best, most = part, affinity[part]
        for other in mine:
            affinity[parts[other]] = 0
        if best == own:
            continue
        for c in range(limits.size):
            loads[own, c] -= weights[node, c]
            loads[best, c] += weights[node, c]
        parts[node] = best
        moved += 1
    return moved
