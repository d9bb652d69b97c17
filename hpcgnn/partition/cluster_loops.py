"""Inner loops, compiled by numba, that find clusters of a graph larger than memory in a stream of its edges."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit


@njit(cache=True, nogil=True)
def join(
    first: int,
    indptr: np.ndarray,
    sources: np.ndarray,
    shares: np.ndarray,
    limit: float,
    labels: np.ndarray,
    sizes: np.ndarray,
    affinity: np.ndarray,
) -> int:
    """Move each of the n nodes from ``first`` on to the cluster from which most of its in-edges come, up to the size ``limit``.

    labels: (N,) int32 cluster of each node. sizes: (N,) float32 sum of the shares of each cluster's nodes. Both are modified.
    shares: (n,) of the nodes to move. affinity: (N,) int32 zeros, work space. Returns the number of edges between clusters.
    """
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
def sample(
    first: int,
    indptr: np.ndarray,
    sources: np.ndarray,
    labels: np.ndarray,
    threshold: np.uint64,
    key: np.uint64,
    rows: np.ndarray,
    columns: np.ndarray,
    taken: int,
) -> int:
    """Append the clusters of both ends of some edges between clusters to ``rows`` and ``columns``, from ``taken`` on.

    Each edge has the same chance: it is taken if a hash of its position in the file is below ``threshold``. Returns the number
    of edges that are in ``rows`` now.
    """
    for v in range(indptr.size - 1):
        mine = labels[first + v]
        for i in range(indptr[v], indptr[v + 1]):
            other = labels[sources[i - indptr[0]]]
            if other == mine or taken == rows.size:
                continue
            draw = (np.uint64(i) ^ key) * np.uint64(0x9E3779B97F4A7C15)
            draw = (draw ^ (draw >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            if draw >> np.uint64(1) < threshold:
                rows[taken], columns[taken] = mine, other
                taken += 1
    return taken


@njit(cache=True, nogil=True)
def add_amounts(first: int, labels: np.ndarray, amounts: np.ndarray, sums: np.ndarray) -> None:
    """Add ``amounts`` (n, C) of the n nodes from ``first`` on to the ``sums`` (clusters, C) of their clusters."""
    for v in range(amounts.shape[0]):
        for c in range(amounts.shape[1]):
            sums[labels[first + v], c] += amounts[v, c]


@njit(cache=True, nogil=True)
def both_ways(rows: np.ndarray, columns: np.ndarray, cursor: np.ndarray, indices: np.ndarray) -> None:
    """Store each edge (rows[i], columns[i]) in both directions in ``indices``. ``cursor`` has the next free place of each row.
    Both are modified."""
    for i in range(rows.size):
        indices[cursor[rows[i]]] = columns[i]
        cursor[rows[i]] += 1
        indices[cursor[columns[i]]] = rows[i]
        cursor[columns[i]] += 1
