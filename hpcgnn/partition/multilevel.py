"""Multilevel partitioning of a bounded piece of a graph beside parts that are partly filled, as in HeiStream.

In Faraj and Schulz, "Buffered streaming graph partitioning" (2022), a model of the piece has a node for each of its nodes, and
a fixed one for each part. The model is coarsened by clusters, partitioned by Fennel's objective, and improved at each level
while it is refined again. The loops, compiled by numba, also find clusters in a stream of edges of a graph larger than memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.partition.problem import place

CLUSTERS_A_PART = 12
_FEWEST_A_PART = 24
_FEWEST = 1 << 10
_CLUSTER_ROUNDS = 4
_LEAST_SHRINKING = 0.9
_ROUNDS = 8  # of local search at each level
# The emptiest of this many parts, taken in turn, is used: a search among all parts takes O(parts) for each node.
_WINDOW = 64
_STAY = 1e-6  # a node stays in its part unless the gain is larger than this, in edges


class Model(NamedTuple):
    """A graph of n movable nodes, and a fixed node for each part, as CSR.

    indptr: (n+1,) int64. columns: int32; a column ``n + p`` stands for the nodes that are already in part p. weights: int32 of
    the entries. amounts: (n, C) int64 quantities to balance. shares: (n,) float32 share of each node in them, 1 on average.
    """

    indptr: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    amounts: np.ndarray
    shares: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes that can move, so without the fixed ones."""
        return self.indptr.size - 1

    def contracted(self, labels: np.ndarray, count: int, num_parts: int) -> Model:
        """The model whose nodes are clusters. labels: (n,) int32 cluster of each node, from 0 to ``count - 1``."""
        indptr, columns, weights = contract(self.indptr, self.columns, self.weights, labels, count, num_parts)
        amounts = np.stack([np.bincount(labels, column, count) for column in self.amounts.T], axis=1).astype(np.int64)
        shares = np.bincount(labels, self.shares, count).astype(np.float32)
        return Model(indptr, columns, weights, amounts, shares)


class Parts(NamedTuple):
    """The contents of the parts. load: (P, C) int64 quantities in each part. mean: (C,) float64 mean load of a part once all
    nodes are placed. capacity: (C,) float64 largest load of a part; if no part has room, the emptiest is taken."""

    load: np.ndarray
    mean: np.ndarray
    capacity: np.ndarray


def partition_model(model: Model, parts: np.ndarray, filled: Parts, price: float, rng: np.random.Generator) -> None:
    """Place the nodes of ``model`` whose ``parts`` (n,) int32 is -1, and move others if that helps. Modifies ``parts`` and
    ``filled.load``, which has the quantities of nodes with a part already. price: of fullness in Fennel's objective, in
    units of an average node's edges."""
    num_parts = filled.load.shape[0]
    fewest = max(_FEWEST, _FEWEST_A_PART * num_parts)
    levels: list[tuple[Model, np.ndarray, np.ndarray]] = []
    while model.num_nodes > fewest:
        labels = np.empty(model.num_nodes, dtype=np.int32)
        _cluster(model, filled.mean / CLUSTERS_A_PART, _order(model, rng), parts, labels, _CLUSTER_ROUNDS)
        count = number_clusters(labels)
        if count > _LEAST_SHRINKING * model.num_nodes:
            break
        levels.append((model, parts, labels))
        coarse_parts = np.full(count, -1, dtype=np.int32)
        coarse_parts[labels] = parts  # all nodes of a cluster have the same part
        model, parts = model.contracted(labels, count, num_parts), coarse_parts
    _improve(model, _order(model, rng), filled, parts, price, _ROUNDS)
    while levels:
        fine, fine_parts, labels = levels.pop()
        fine_parts[:] = parts[labels]
        model, parts = fine, fine_parts
        _improve(model, _order(model, rng), filled, parts, price, _ROUNDS)


def _order(model: Model, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(model.num_nodes).astype(np.int32)


@njit(cache=True, nogil=True)
def fits(load: np.ndarray, extra: np.ndarray, capacity: np.ndarray) -> bool:
    """Return whether ``load + extra``, both (C,), is at most ``capacity`` in every quantity that ``extra`` has any of."""
    for c in range(extra.size):  # noqa: SIM110 - numba has no generators inside all()
        if extra[c] > 0 and load[c] + extra[c] > capacity[c]:
            return False
    return True


@njit(cache=True, nogil=True)
def _fullness(load: np.ndarray, mean: np.ndarray) -> float:
    fullest = 0.0
    for c in range(mean.size):
        fullest = max(fullest, load[c] / mean[c])
    return fullest


@njit(cache=True, nogil=True)
def _cluster(
    model: Model, limit: np.ndarray, order: np.ndarray, parts: np.ndarray, labels: np.ndarray, rounds: int
) -> None:
    """Label propagation, in ``order`` (n,): join each node to the cluster to which it has most edges and which stays within
    ``limit`` (C,). labels: (n,) int32, overwritten with a node of each node's cluster. Clusters do not cross ``parts`` (n,)
    int32 where these are not negative."""
    indptr, columns, weights, amounts, _ = model
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
                if affinity[other] > most and fits(size[other], amounts[v], limit):
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
    indptr: np.ndarray, columns: np.ndarray, weights: np.ndarray, labels: np.ndarray, count: int, num_parts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(indptr, columns, weights)`` of the model of ``count`` clusters; arguments are those of :class:`Model`."""
    n = indptr.size - 1
    begins = np.zeros(count + 1, dtype=np.int64)
    begins[1:] = np.cumsum(np.bincount(labels, minlength=count))
    members = np.empty(n, dtype=np.int32)
    place(labels, np.arange(n), begins[:-1].copy(), members)
    coarse_indptr = np.zeros(count + 1, dtype=np.int64)
    coarse_columns, coarse_weights = np.empty(columns.size, np.int32), np.empty(columns.size, np.int32)
    place_of = np.full(count + num_parts, -1, dtype=np.int64)
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
                if place_of[other] < first:
                    place_of[other] = written
                    coarse_columns[written] = other
                    coarse_weights[written] = weights[i]
                    written += 1
                else:
                    coarse_weights[place_of[other]] += weights[i]
        coarse_indptr[c + 1] = written
    return coarse_indptr, coarse_columns[:written].copy(), coarse_weights[:written].copy()


@njit(cache=True, nogil=True)
def _best_part(
    targets: np.ndarray, affinity: np.ndarray, roots: np.ndarray, cost: float, amount: np.ndarray, filled: Parts,
    best: int, most: float,
) -> tuple[int, float]:  # fmt: skip
    """``(part, score)`` of the best of ``targets`` with room for ``amount`` (C,), or the given one; clears ``affinity``."""
    for part in targets:
        if part < 0 or affinity[part] == 0:
            continue
        score = affinity[part] - cost * roots[part]
        affinity[part] = 0
        if score > most and fits(filled.load[part], amount, filled.capacity):
            best, most = part, score
    return best, most


@njit(cache=True, nogil=True)
def _improve(model: Model, order: np.ndarray, filled: Parts, parts: np.ndarray, price: float, rounds: int) -> None:
    """Place or move each node where Fennel's objective is best: edges to a part, less ``price * shares[v] *
    sqrt(fullness)``. Modifies ``parts`` (n,) int32, -1 for none, and the load."""
    indptr, columns, weights, amounts, shares = model
    load, mean, capacity = filled
    n, num_parts = indptr.size - 1, load.shape[0]
    affinity, targets = np.zeros(num_parts, dtype=np.int64), np.empty(num_parts, dtype=np.int64)
    roots = np.array([np.sqrt(_fullness(load[part], mean)) for part in range(num_parts)])
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
            if mine >= 0 and fits(load[mine], amount, capacity):
                best, most = mine, affinity[mine] - cost * roots[mine] + _STAY
            best, most = _best_part(targets[:found], affinity, roots, cost, amount, filled, best, most)
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
                roots[best] = np.sqrt(_fullness(load[best], mean))
                if mine >= 0:
                    roots[mine] = np.sqrt(_fullness(load[mine], mean))
        if moved * 200 < n:
            return


@njit(cache=True, nogil=True)
def buffer_model(
    first: int, indptr: np.ndarray, sources: np.ndarray, symmetric: bool, parts: np.ndarray, votes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(indptr, columns, weights)`` of the model of the nodes from ``first`` on, whose in-edges are ``indptr`` (n+1,) from
    0 and ``sources``. If the graph is not ``symmetric``, edges among the nodes count in both directions, and a node also has
    an edge to the part named by ``votes`` (N, 2) int32, as heavy as the number of votes, which are then cleared."""
    n = indptr.size - 1
    begins = np.zeros(n + 1, np.int64)
    columns, weights = np.empty(0, np.int32), np.empty(0, np.int32)
    for filling in (False, True):  # entries are counted first
        cursor = begins[:-1].copy()
        for v in range(n):
            for i in range(indptr[v], indptr[v + 1]):
                u = sources[i] - first
                if 0 <= u < n:
                    if u != v:
                        _add_entry(v, u, 1, cursor, columns, weights)
                        if not symmetric:
                            _add_entry(u, v, 1, cursor, columns, weights)
                elif parts[sources[i]] >= 0:
                    _add_entry(v, n + parts[sources[i]], 1, cursor, columns, weights)
            if votes.size and votes[first + v, 1] > 0:
                _add_entry(v, n + votes[first + v, 0], votes[first + v, 1], cursor, columns, weights)
                if filling:
                    votes[first + v, 1] = 0
        if not filling:
            begins[1:] = np.cumsum(cursor)
            columns, weights = np.empty(begins[n], np.int32), np.empty(begins[n], np.int32)
    return begins, columns, weights


@njit(inline="always")
def _add_entry(
    row: int, column: int, weight: int, cursor: np.ndarray, columns: np.ndarray, weights: np.ndarray
) -> None:
    """Count an entry of a row, and store it if there is room for any."""
    if columns.size:
        columns[cursor[row]] = column
        weights[cursor[row]] = weight
    cursor[row] += 1


@njit(cache=True, nogil=True)
def vote(first: int, indptr: np.ndarray, sources: np.ndarray, parts: np.ndarray, votes: np.ndarray) -> None:
    """Record for each source outside these nodes the part to which its edge goes; the majority survives (Boyer and Moore)."""
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


@njit(cache=True, nogil=True)
def join_clusters(
    first: int, indptr: np.ndarray, sources: np.ndarray, shares: np.ndarray, limit: float, labels: np.ndarray,
    sizes: np.ndarray, affinity: np.ndarray,
) -> int:  # fmt: skip
    """Move each of the n nodes from ``first`` on to the cluster from which most of its in-edges come, up to the size
    ``limit``; returns the number of edges between clusters. labels: (N,) int32 cluster of each node, and sizes: (N,) float32
    sum of the ``shares`` (n,) in each cluster are modified. affinity: (N,) int32 zeros, work space."""
    between = 0
    for v in range(indptr.size - 1):
        mine = labels[first + v]
        begin, end = indptr[v] - indptr[0], indptr[v + 1] - indptr[0]
        for i in range(begin, end):
            affinity[labels[sources[i]]] += 1
        best, most = mine, affinity[mine]
        inside = most
        for i in range(begin, end):
            other = labels[sources[i]]
            if affinity[other] > most and sizes[other] + shares[v] <= limit:
                best, most = other, affinity[other]
                inside = most
            affinity[other] = 0
        affinity[mine] = 0
        if best != mine:
            sizes[mine] -= shares[v]
            sizes[best] += shares[v]
            labels[first + v] = best
        between += end - begin - inside
    return between


@njit(cache=True, nogil=True)
def sample_edges(
    first: int, indptr: np.ndarray, sources: np.ndarray, labels: np.ndarray, threshold: np.uint64, key: np.uint64,
    ends: np.ndarray, taken: int,
) -> int:  # fmt: skip
    """Append the clusters of both ends of some edges between clusters to ``ends`` (m, 2), from ``taken`` on; returns the
    number of edges there. An edge is taken if a hash of its position in the file is below ``threshold``."""
    for v in range(indptr.size - 1):
        mine = labels[first + v]
        for i in range(indptr[v], indptr[v + 1]):
            other = labels[sources[i - indptr[0]]]
            if other == mine or taken == len(ends):
                continue
            draw = (np.uint64(i) ^ key) * np.uint64(0x9E3779B97F4A7C15)
            draw = (draw ^ (draw >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            if draw >> np.uint64(1) < threshold:
                ends[taken, 0], ends[taken, 1] = mine, other
                taken += 1
    return taken
