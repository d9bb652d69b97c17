"""The inner loops of multilevel partitioning in memory: clustering, contraction, local search. Compiled by numba.

A model is a graph of ``n`` movable nodes, and a fixed node for each part. It is stored as CSR: ``indptr`` (n+1,) int64,
``columns`` int32, ``weights`` int32; a column ``n + p`` stands for the nodes that are already in part p. ``amounts`` (n, C)
int64 are the quantities to balance.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit

# The emptiest of this many parts, taken in turn, is used: a search among all parts takes O(parts) for each node.
_WINDOW = 64
_STAY = 1e-6  # a node stays in its part unless the gain is larger than this, in edges


@njit(cache=True, nogil=True)
def _fits(load: np.ndarray, extra: np.ndarray, capacity: np.ndarray) -> bool:
    """Return whether ``load`` and ``extra``, both (C,), are at most ``capacity`` in every quantity that ``extra`` has any of."""
    for c in range(extra.size):  # noqa: SIM110 - numba has no generators inside all()
        if extra[c] > 0 and load[c] + extra[c] > capacity[c]:
            return False
    return True


@njit(cache=True, nogil=True)
def fullness(load: np.ndarray, mean: np.ndarray) -> float:
    """The largest of ``load / mean``, both (C,); 1.0 is an equal share."""
    fullest = 0.0
    for c in range(mean.size):
        fullest = max(fullest, load[c] / mean[c])
    return fullest


@njit(cache=True, nogil=True)
def cluster(
    indptr: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
    amounts: np.ndarray,
    limit: np.ndarray,
    order: np.ndarray,
    parts: np.ndarray,
    labels: np.ndarray,
    rounds: int,
) -> None:
    """Label propagation: join each node to the cluster to which it has most edges and which stays within ``limit`` (C,).

    labels: (n,) int32, overwritten with a node of each node's cluster. Clusters do not cross ``parts`` (n,) int32 where these
    are not negative. Nodes are visited in ``order`` (n,).
    """
    n = indptr.size - 1
    size = amounts.copy()
    affinity = np.zeros(n, dtype=np.int64)
    for v in range(n):
        labels[v] = v
    for _ in range(rounds):
        moved = 0
        for v in order:
            mine = labels[v]
            for i in range(indptr[v], indptr[v + 1]):
                u = columns[i]
                if u < n and parts[u] == parts[v]:
                    affinity[labels[u]] += weights[i]
            best, most = mine, affinity[mine]
            for i in range(indptr[v], indptr[v + 1]):
                u = columns[i]
                if u >= n:
                    continue
                other = labels[u]
                if affinity[other] > most and _fits(size[other], amounts[v], limit):
                    best, most = other, affinity[other]
                affinity[other] = 0
            affinity[mine] = 0
            if best != mine:
                size[mine] -= amounts[v]
                size[best] += amounts[v]
                labels[v] = best
                moved += 1
        if moved * 50 < n:
            break


@njit(cache=True, nogil=True)
def number_clusters(labels: np.ndarray) -> int:
    """Renumber ``labels`` (n,) to 0, 1, ... in the order of their first nodes, and return the number of clusters."""
    names = np.full(labels.size, -1, dtype=np.int32)
    count = 0
    for v in range(labels.size):
        if names[labels[v]] < 0:
            names[labels[v]] = count
            count += 1
        labels[v] = names[labels[v]]
    return count


@njit(cache=True, nogil=True)
def contract(
    indptr: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
    labels: np.ndarray,
    count: int,
    num_parts: int,
    coarse_indptr: np.ndarray,
    coarse_columns: np.ndarray,
    coarse_weights: np.ndarray,
) -> None:
    """The model of ``count`` clusters. Modifies the last three arguments; the last two must have room for as many entries as
    the model had.
    """
    n = indptr.size - 1
    begins = np.zeros(count + 1, dtype=np.int64)
    for v in range(n):
        begins[labels[v] + 1] += 1
    for c in range(count):
        begins[c + 1] += begins[c]
    members = np.empty(n, dtype=np.int32)
    cursor = begins[:-1].copy()
    for v in range(n):
        members[cursor[labels[v]]] = v
        cursor[labels[v]] += 1
    place = np.full(count + num_parts, -1, dtype=np.int64)
    written = 0
    for c in range(count):
        first = written
        for m in range(begins[c], begins[c + 1]):
            v = members[m]
            for i in range(indptr[v], indptr[v + 1]):
                u = columns[i]
                other = labels[u] if u < n else u - n + count
                if other == c:
                    continue
                if place[other] < first:
                    place[other] = written
                    coarse_columns[written] = other
                    coarse_weights[written] = weights[i]
                    written += 1
                else:
                    coarse_weights[place[other]] += weights[i]
        coarse_indptr[c + 1] = written


@njit(cache=True, nogil=True)
def _best_part(
    targets: np.ndarray,
    affinity: np.ndarray,
    roots: np.ndarray,
    cost: float,
    amount: np.ndarray,
    load: np.ndarray,
    capacity: np.ndarray,
    best: int,
    most: float,
) -> tuple[int, float]:
    """``(part, score)`` of the best of ``targets`` with room for ``amount`` (C,), or ``best``, ``most``; clears ``affinity``."""
    for part in targets:
        if part < 0 or affinity[part] == 0:
            continue
        score = affinity[part] - cost * roots[part]
        affinity[part] = 0
        if score > most and _fits(load[part], amount, capacity):
            best, most = part, score
    return best, most


@njit(cache=True, nogil=True)
def improve(
    indptr: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
    amounts: np.ndarray,
    shares: np.ndarray,
    order: np.ndarray,
    mean: np.ndarray,
    capacity: np.ndarray,
    parts: np.ndarray,
    load: np.ndarray,
    price: float,
    rounds: int,
) -> None:
    """Place or move each node where Fennel's objective is best. Modifies ``parts`` (n,) int32, -1 for none, and ``load`` (P,
    C).

    The objective of a part is the number of edges to it, less ``price * shares[v] * sqrt(fullness)``. shares: (n,) float32
    share of each node in the quantities to balance, 1 on average. capacity: (C,) largest load of a part; if no part has room,
    the emptiest is taken.
    """
    n, num_parts = indptr.size - 1, load.shape[0]
    affinity, targets = np.zeros(num_parts, dtype=np.int64), np.empty(num_parts, dtype=np.int64)
    roots = np.array([np.sqrt(fullness(load[part], mean)) for part in range(num_parts)])
    begin = 0
    for _ in range(rounds):
        moved = 0
        for v in order:
            mine, amount, cost = parts[v], amounts[v], price * shares[v]
            if mine >= 0:
                load[mine] -= amount
            found = 0
            for i in range(indptr[v], indptr[v + 1]):
                u = columns[i]
                part = parts[u] if u < n else u - n
                if part >= 0:
                    if affinity[part] == 0:
                        targets[found] = part
                        found += 1
                    affinity[part] += weights[i]
            best, most = -1, -np.inf
            if mine >= 0 and _fits(load[mine], amount, capacity):
                best, most = mine, affinity[mine] - cost * roots[mine] + _STAY
            best, most = _best_part(targets[:found], affinity, roots, cost, amount, load, capacity, best, most)
            if best < 0 or (cost > 0 and most < 0):
                begin = 0 if best < 0 else (begin + _WINDOW) % num_parts
                end = num_parts if best < 0 else min(begin + _WINDOW, num_parts)
                emptiest = begin + int(np.argmin(roots[begin:end]))
                if best < 0 or -cost * roots[emptiest] > most:
                    best = emptiest
            load[best] += amount
            if best != mine:
                parts[v] = best
                moved += 1
                roots[best] = np.sqrt(fullness(load[best], mean))
                if mine >= 0:
                    roots[mine] = np.sqrt(fullness(load[mine], mean))
        if moved * 200 < n:
            return


@njit(cache=True, nogil=True)
def count_model(
    first: int,
    indptr: np.ndarray,
    sources: np.ndarray,
    symmetric: bool,
    parts: np.ndarray,
    votes: np.ndarray,
    degrees: np.ndarray,
) -> None:
    """Number of entries in each row of the model of the nodes from ``first`` on; see :func:`fill_model`. Modifies ``degrees``
    (n,) int64, which must be zero.
    """
    n = indptr.size - 1
    for v in range(n):
        for i in range(indptr[v], indptr[v + 1]):
            u = sources[i] - first
            if 0 <= u < n:
                if u != v:
                    degrees[v] += 1
                    if not symmetric:
                        degrees[u] += 1
            elif parts[sources[i]] >= 0:
                degrees[v] += 1
        if votes.size and votes[first + v, 1] > 0:
            degrees[v] += 1


@njit(cache=True, nogil=True)
def fill_model(
    first: int,
    indptr: np.ndarray,
    sources: np.ndarray,
    symmetric: bool,
    parts: np.ndarray,
    votes: np.ndarray,
    cursor: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    """The model of the nodes from ``first`` on: edges among them, and edges to parts. sources: of their in-edges. indptr:
    (n+1), from 0.

    If the graph is not ``symmetric``, edges among the nodes count in both directions, and a node also has an edge to the part
    named by ``votes`` (N, 2) int32, as heavy as the number of votes, which are then cleared. cursor: (n,) beginning of each
    row.
    """
    n = indptr.size - 1
    for v in range(n):
        for i in range(indptr[v], indptr[v + 1]):
            u = sources[i] - first
            if 0 <= u < n:
                if u != v:
                    columns[cursor[v]] = u
                    weights[cursor[v]] = 1
                    cursor[v] += 1
                    if not symmetric:
                        columns[cursor[u]] = v
                        weights[cursor[u]] = 1
                        cursor[u] += 1
            elif parts[sources[i]] >= 0:
                columns[cursor[v]] = n + parts[sources[i]]
                weights[cursor[v]] = 1
                cursor[v] += 1
        if votes.size and votes[first + v, 1] > 0:
            columns[cursor[v]] = n + votes[first + v, 0]
            weights[cursor[v]] = votes[first + v, 1]
            cursor[v] += 1
            votes[first + v, 1] = 0


@njit(cache=True, nogil=True)
def vote(first: int, indptr: np.ndarray, sources: np.ndarray, parts: np.ndarray, votes: np.ndarray) -> None:
    """Record for each source outside this range of nodes the part to which its edge goes; the majority of parts survives (Boyer
    and Moore).
    """
    n = indptr.size - 1
    for v in range(n):
        part = parts[first + v]
        for i in range(indptr[v], indptr[v + 1]):
            u = sources[i]
            if first <= u < first + n:
                continue
            if votes[u, 1] == 0:
                votes[u, 0] = part
            votes[u, 1] += 1 if votes[u, 0] == part else -1
