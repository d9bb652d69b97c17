"""Building plans from the in-edges of a part.

A receiver knows all cut edges into its part, so it decides alone: :func:`plan_receiver` gives its L and R, and the rows of S
that each sender must compute for it. These rows reach their senders through a file (:mod:`hpcgnn.data.plan_store`) or
through messages (:mod:`hpcgnn.graph.local_graph`); each sender concatenates them to its S (:func:`sender_matrix`).

Which cut edges are aggregated before their rows travel, and which after, is SuperGCN's choice (§3.3.1, Algorithm 1). For each
ordered pair of ranks, the cut edges form a bipartite graph of sources and destinations. A minimum vertex cover is the smallest
set of rows that serves all of these edges. A source in the cover travels as it is (*post*). All other edges are summed into
their destination's row at the sender, and this row travels (*pre*). By König's theorem the cover has as many vertices as a
maximum matching has edges.

An edge with both ends in the cover may be added up on either side: the same rows travel. It is *post*, unless the receiver has
too much work (:func:`relieved`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcgnn.plan.plan import PeerRows, SparseMatrix, offsets_of, owners_of, ranges
from hpcgnn.plan.relations import ResultRows

if TYPE_CHECKING:
    import scipy.sparse as sp


_GOLDEN_RATIO = 0.6180339887498949
MOST_WORK = 1.3  # entries of a receiver's L and R, relative to the mean number of edges of a part


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
    frontier, lengths = np.flatnonzero(reached), np.diff(graph.indptr)
    while frontier.size:
        neighbours = graph.indices[ranges(graph.indptr[frontier], lengths[frontier])]
        fresh = np.unique(neighbours[~seen[neighbours]])
        seen[fresh] = True
        frontier = source_of[fresh]  # all are matched: an unmatched one would end an augmenting path
        frontier = frontier[~reached[frontier]]
        reached[frontier] = True
    return reached


def post_edges(sources: np.ndarray, sums: np.ndarray, strategy: str | np.ndarray) -> np.ndarray:
    """(m,) bool: whether an edge is aggregated after its source has travelled, with ``pre``, ``post`` or ``hybrid``, or as (m,)
    bool say. sources, sums: (m,) integers that name the source of each edge, and the row that would carry it as a sum."""
    if not isinstance(strategy, str):
        return strategy
    if strategy != "hybrid":
        return np.full(sources.size, strategy == "post")
    lefts, left = np.unique(sources, return_inverse=True)
    rights, right = np.unique(sums, return_inverse=True)
    return sources_in_cover(left, right, (lefts.size, rights.size))[left]


def relieved(
    is_post: np.ndarray, sources: np.ndarray, sums: np.ndarray, num_local: int, mean_edges: float
) -> np.ndarray:
    """(m,) bool: ``is_post`` (m,) of a receiver, after edges of an overloaded one have become *pre*.

    sources, sums: as of :func:`post_edges`; sums ascend by sender. num_local: entries of L. mean_edges: the mean number of edges
    of a part. If L and R have more than ``MOST_WORK`` times as many entries, the receiver leaves edges to their senders, until L
    and R have about ``mean_edges`` entries, or no edge is left that costs no row. All edges of a sum move together: of one that
    travels anyway, or that takes the place of a source's row. The sums are spread evenly over the senders.
    """
    travelling, taken = np.unique(sums[~is_post]), np.flatnonzero(is_post)
    surplus = num_local + taken.size + travelling.size - mean_edges
    if surplus <= (MOST_WORK - 1) * mean_edges or not taken.size:
        return is_post
    by_source = taken[np.lexsort((sums[taken], sources[taken]))]
    begins = np.flatnonzero(np.diff(sources[by_source], prepend=-1))
    first, last = sums[by_source[begins]], sums[by_source[np.append(begins[1:], by_source.size) - 1]]
    replacing = first[first == last]  # the sums that are the only ones for which some source's row travels
    groups, of_group, sizes = np.unique(sums[taken], return_inverse=True, return_counts=True)
    relief = sizes - ~np.isin(groups, travelling)
    relief[~np.isin(groups, np.concatenate((travelling, replacing)))] = 0
    free = np.flatnonzero(relief)
    free = free[np.argsort(np.arange(free.size) * _GOLDEN_RATIO % 1)]  # the first ones of this order are spread evenly
    moved = np.zeros(groups.size, bool)
    moved[free[np.cumsum(relief[free]) <= surplus]] = True
    found = is_post.copy()
    found[taken[moved[of_group]]] = False
    return found


@dataclass(frozen=True)
class SendRows:
    """Rows of S that a receiver asks for, grouped by sender, as ranks send them to each other. lengths: (rows,) int64 entries of
    each row; sources: (entries,) int32 local index at the sender; edges: (entries,) int64 as in :class:`SparseMatrix`."""

    lengths: np.ndarray
    sources: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class ReceiverPlan:
    """A receiver's half of the plan. local: L. receive: R. receive_from: numbers of rows by sender. wanted: those rows of S,
    in the order of the senders."""

    local: SparseMatrix
    receive: SparseMatrix
    receive_from: PeerRows
    wanted: SendRows


def plan_receiver(
    indptr: np.ndarray,
    indices: np.ndarray,
    node_offsets: np.ndarray,
    part: int,
    strategy: str | np.ndarray,
    rows: ResultRows | None = None,
    mean_edges: float = math.inf,
) -> ReceiverPlan:
    """Plan the rows that one part receives.

    Args:
        indptr: (n + 1,) int64 slab of the global CSR by destination (``indptr[0]`` is the part's first edge).
        indices: (edges,) int64 source positions.
        node_offsets: (P + 1,) int64 first position of each part.
        part: the receiver. strategy: ``pre``, ``post`` or ``hybrid``; or (edges,) bool, the edges that are *post*.
        rows: the rows of the sums; None for a row of each node.
        mean_edges: the mean number of edges of a part, by which ``hybrid`` finds a part with too much work.

    Memory is O(edges of the part); time O(edges log edges) plus the matching.
    """
    first, last = int(node_offsets[part]), int(node_offsets[part + 1])
    num_nodes = last - first
    if rows is None:
        rows = ResultRows(np.repeat(np.arange(num_nodes), np.diff(indptr)), num_nodes)
    edges = np.arange(indptr[0], indptr[-1])
    inside = (indices >= first) & (indices < last)
    local = csr_matrix(rows.of_edge[inside], (indices[inside] - first), edges[inside], (rows.count, num_nodes))
    cut = indices[~inside], rows.of_edge[~inside], edges[~inside]
    sums = owners_of(cut[0], node_offsets) * max(rows.count, 1) + cut[1]
    is_post = post_edges(cut[0], sums, strategy if isinstance(strategy, str) else strategy[~inside])
    if isinstance(strategy, str) and strategy == "hybrid":
        is_post = relieved(is_post, cut[0], sums, local.indices.size, mean_edges)
    return _route(local, *cut, node_offsets, rows.count, sums, is_post)


def _route(
    local: SparseMatrix, sources: np.ndarray, destinations: np.ndarray, edges: np.ndarray, node_offsets: np.ndarray,
    num_rows: int, pairs: np.ndarray, is_post: np.ndarray,
) -> ReceiverPlan:  # fmt: skip
    """Number the rows that carry the cut edges; make R, whose columns they are, and S's rows that this part asks for.
    destinations: the row of z to which each edge is added, of ``num_rows``. pairs: ``sender * num_rows + destination``."""
    posts, post_rank = np.unique(sources[is_post], return_inverse=True)
    sums, pre_rank = np.unique(pairs[~is_post], return_inverse=True)
    post_sender = owners_of(posts, node_offsets)
    pre_sender, pre_destination = np.divmod(sums, max(num_rows, 1))
    # Rows in the order of the wire: by sender, post before pre, then by source or destination.
    order = np.argsort(np.concatenate((post_sender, pre_sender)), kind="stable")
    row = np.empty(order.size, dtype=np.int64)
    row[order] = np.arange(order.size)
    post_row, pre_row = row[: posts.size], row[posts.size :]

    none = np.full(order.size, -1, dtype=np.int64)
    receive = csr_matrix(
        np.concatenate((destinations[is_post], pre_destination)),
        np.concatenate((post_row[post_rank], pre_row)),
        np.concatenate((edges[is_post], none[: pre_row.size])),
        (num_rows, order.size),
    )
    senders = np.concatenate((post_sender, pre_sender[pre_rank]))
    wanted = csr_matrix(
        np.concatenate((post_row, pre_row[pre_rank])),
        np.concatenate((posts, sources[~is_post])) - node_offsets[senders],
        np.concatenate((none[: post_row.size], edges[~is_post])),
        (order.size, 0),
    )
    counts = [np.bincount(of_rows, minlength=node_offsets.size - 1) for of_rows in (post_sender, pre_sender)]
    rows = SendRows(np.diff(wanted.indptr), wanted.indices, wanted.edges)
    return ReceiverPlan(local, receive, PeerRows.of(np.stack(counts, axis=1)), rows)


def sender_matrix(wanted: SendRows, num_owned: int) -> SparseMatrix:
    """S of a sender that owns ``num_owned`` nodes, from the rows that its receivers want, in the order of receivers."""
    return SparseMatrix(offsets_of(wanted.lengths), wanted.sources, wanted.edges, num_owned)


def csr_matrix(rows: np.ndarray, columns: np.ndarray, edges: np.ndarray | None, shape: tuple[int, int]) -> SparseMatrix:
    """A CSR matrix of ones from (entries,) rows, columns and edges, which may be None. Entries of a row are sorted by
    column, and equal entries keep their order, so that sums are reproducible."""
    order = np.lexsort((columns, rows))
    indptr = offsets_of(np.bincount(rows, minlength=shape[0]))
    kept = np.empty(0, np.int64) if edges is None else edges[order]
    return SparseMatrix(indptr, columns[order].astype(np.int32), kept, shape[1])
