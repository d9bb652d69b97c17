"""The choice of the cut edges that are aggregated before their rows travel, and after (SuperGCN §3.3.1, Algorithm 1).

For each ordered pair of ranks, the cut edges form a bipartite graph of sources and destinations. A minimum vertex cover is
the smallest set of rows that serves all of these edges. A source in the cover travels as it is (*post*). All other edges are
summed into their destination's row at the sender, and this row travels (*pre*). By König's theorem the cover has as many
vertices as a maximum matching has edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse as sp


def sources_in_cover(sources: np.ndarray, destinations: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Find the sources that belong to a minimum vertex cover of a bipartite graph.

    Args:
        sources, destinations: (E,) integer end points of each edge, in ``[0, shape[0])`` and ``[0, shape[1])``;
            duplicates are allowed. Several disjoint graphs (all the pairs of a receiver) can be solved in one call.

    Returns:
        (shape[0],) bool. An edge whose source is not marked has its destination in the cover.
    """
    # SciPy is imported here, because a rank that finds its plan in the file never calls this, and saves 10 MB.
    import scipy.sparse as sp
    from scipy.sparse.csgraph import maximum_bipartite_matching

    graph = sp.csr_matrix((np.ones(sources.size, dtype=np.int8), (sources, destinations)), shape=shape)
    destination_of = maximum_bipartite_matching(graph, perm_type="column")
    source_of = np.full(shape[1], -1, dtype=np.int64)
    matched = np.flatnonzero(destination_of >= 0)
    source_of[destination_of[matched]] = matched
    return ~_alternating_reach(graph, destination_of, source_of)


def _alternating_reach(graph: sp.csr_matrix, destination_of: np.ndarray, source_of: np.ndarray) -> np.ndarray:
    """Sources reached from unmatched ones along alternating paths (König); isolated sources count as reached."""
    reached = destination_of < 0
    seen = np.zeros(graph.shape[1], dtype=bool)
    frontier = np.flatnonzero(reached)
    while frontier.size:
        neighbours = graph.indices[_ranges(graph.indptr[frontier], graph.indptr[frontier + 1])]
        fresh = np.unique(neighbours[~seen[neighbours]])
        seen[fresh] = True
        frontier = source_of[fresh]  # all are matched: an unmatched one would end an augmenting path
        frontier = frontier[~reached[frontier]]
        reached[frontier] = True
    return reached


def _ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The concatenation of ``arange(begin, end)`` over all pairs."""
    lengths = (ends - begins).astype(np.int64)
    shifts = np.repeat(begins - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    return np.arange(lengths.sum()) + shifts
