"""A sample of the edges of a large graph, with which the partitioner takes half of the memory or less, for a slightly larger cut.

An edge between two nodes with many neighbours tells little about their right parts. Such an edge is kept with a probability that
leaves about :data:`NEIGHBOURS` neighbours to the one that has fewer. All edges of nodes with fewer neighbours than that are kept.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.partition.kaminpar_file import SymmetricFile

NEIGHBOURS = 32


def sampled(graph: SymmetricFile, weights: np.ndarray, seed: int) -> SymmetricFile:
    """``graph`` with a sample of its edges; ``weights`` (N,) int64 are its nodes' weights.

    An edge is kept if ``NEIGHBOURS`` divided by the smaller degree of its ends is above a random number from 0 to 1, which
    depends only on ``seed`` and its ends. Memory is 16 bytes a node and the arrays that :meth:`SymmetricFile.rows` yields.
    """
    degrees = np.concatenate([np.zeros(0, np.int64), *(np.diff(indptr) for _, indptr, _ in graph.rows())])
    kept = np.zeros(degrees.size, dtype=np.int64)
    fewer = SymmetricFile(graph.num_nodes, graph.folder)
    try:
        for first, indptr, neighbours in graph.rows():
            count = _keep(first, indptr, neighbours, degrees, np.uint64(seed), kept)
            fewer.append(neighbours[:count])
        fewer.finish(kept)
        fewer.write_weights(0, weights)
    except BaseException:
        fewer.close()
        raise
    return fewer


@njit(cache=True)
def _keep(
    first: int, indptr: np.ndarray, neighbours: np.ndarray, degrees: np.ndarray, seed: np.uint64, kept: np.ndarray
) -> int:
    """Move the ``neighbours`` that are kept to the front of the array, and count those of each row in ``kept`` (N,); returns
    their number."""
    count = 0
    for row in range(indptr.size - 1):
        node = first + row
        for i in range(indptr[row], indptr[row + 1]):
            other = neighbours[i]
            fewest = min(degrees[node], degrees[other])
            if fewest <= NEIGHBOURS or _draw(min(node, other), max(node, other), seed) * fewest < NEIGHBOURS:
                neighbours[count] = other
                count += 1
                kept[node] += 1
    return count


@njit(cache=True)
def _draw(low: int, high: int, seed: np.uint64) -> float:
    """A random number in [0, 1) that is the same for both directions of an edge."""
    bits = np.uint64(low) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(high) * np.uint64(0xC2B2AE3D27D4EB4F)
    bits ^= (seed + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
    for _ in range(2):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)) / 9007199254740992.0
