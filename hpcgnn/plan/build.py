"""Building plans from the in-edges of a part.

A receiver knows all cut edges into its part, so it decides alone: :func:`plan_receiver` gives its L and R, and the rows of S
that each sender must compute for it. These rows reach their senders through a file (:mod:`hpcgnn.data.plan_store`) or
through messages (:mod:`hpcgnn.graph.local_graph`); each sender concatenates them to its S (:func:`sender_matrix`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcgnn.plan.plan import PeerRows, SparseMatrix

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


@dataclass(frozen=True)
class SendRows:
    """Rows of S that a receiver asks for, grouped by sender, in the form in which ranks send them to each other.

    lengths: (rows,) int64 entries of each row; sources: (entries,) int32 local index at the sender; edges: (entries,)
    int64 position of the edge in ``parts.h5``, -1 in *post* rows.
    """

    lengths: np.ndarray
    sources: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class ReceiverPlan:
    """A receiver's half of the plan.

    local: L. receive: R. receive_from: numbers of rows by sender. wanted: those rows of S, in the order of the senders.
    """

    local: SparseMatrix
    receive: SparseMatrix
    receive_from: PeerRows
    wanted: SendRows


@dataclass(frozen=True)
class _CutEdges:
    """Edges from other parts, as a bipartite graph of distinct sources (left) and distinct (sender, destination) (right)."""

    sources: np.ndarray  # (lefts,) position of each distinct source, ascending
    left: np.ndarray  # (cut,) index in ``sources`` of each edge's source
    pairs: np.ndarray  # (rights,) sender * n + destination, ascending
    right: np.ndarray  # (cut,) index in ``pairs`` of each edge's pair
    destinations: np.ndarray  # (cut,) local index of the node at which each edge ends
    edges: np.ndarray  # (cut,) position of each edge in ``parts.h5``


def plan_receiver(
    indptr: np.ndarray, indices: np.ndarray, node_offsets: np.ndarray, part: int, strategy: str
) -> ReceiverPlan:
    """Plan the rows that one part receives.

    Args:
        indptr: (n + 1,) int64 slab of the global CSR by destination (``indptr[0]`` is the part's first edge).
        indices: (edges,) int64 source positions.
        node_offsets: (P + 1,) int64 first position of each part.
        part: the receiver. strategy: ``pre``, ``post`` or ``hybrid``.

    Memory is O(edges of the part); time O(edges log edges) plus the matching.
    """
    first, last = int(node_offsets[part]), int(node_offsets[part + 1])
    num_nodes = last - first
    destinations = np.repeat(np.arange(num_nodes), np.diff(indptr))
    edges = np.arange(indptr[0], indptr[-1])
    inside = (indices >= first) & (indices < last)
    local = csr_matrix(destinations[inside], (indices[inside] - first), edges[inside], (num_nodes, num_nodes))
    cut = _cut_edges(indices[~inside], destinations[~inside], edges[~inside], node_offsets, num_nodes)
    return _route(cut, _post_edges(cut, strategy), local, node_offsets, num_nodes)


def _cut_edges(
    sources: np.ndarray, destinations: np.ndarray, edges: np.ndarray, node_offsets: np.ndarray, num_nodes: int
) -> _CutEdges:
    distinct, left = np.unique(sources, return_inverse=True)
    sender = np.searchsorted(node_offsets, distinct, side="right") - 1
    pairs, right = np.unique(sender[left] * max(num_nodes, 1) + destinations, return_inverse=True)
    return _CutEdges(distinct, left, pairs, right, destinations, edges)


def _post_edges(cut: _CutEdges, strategy: str) -> np.ndarray:
    """(cut,) bool: whether an edge is aggregated after its source has travelled."""
    if strategy == "post":
        return np.ones(cut.edges.size, dtype=bool)
    if strategy == "pre":
        return np.zeros(cut.edges.size, dtype=bool)
    return sources_in_cover(cut.left, cut.right, (cut.sources.size, cut.pairs.size))[cut.left]


def _route(
    cut: _CutEdges, is_post: np.ndarray, local: SparseMatrix, node_offsets: np.ndarray, num_nodes: int
) -> ReceiverPlan:
    """Number the rows that travel; return R, whose columns they are, and S's rows that this part asks for."""
    post_left, post_rank = np.unique(cut.left[is_post], return_inverse=True)
    pre_right, pre_rank = np.unique(cut.right[~is_post], return_inverse=True)
    post_sender = np.searchsorted(node_offsets, cut.sources[post_left], side="right") - 1
    pre_sender, pre_destination = np.divmod(cut.pairs[pre_right], max(num_nodes, 1))
    # Rows in the order of the wire: by sender, post before pre, then by source or destination.
    order = np.lexsort((np.arange(post_sender.size + pre_sender.size), np.concatenate((post_sender, pre_sender))))
    row = np.empty(order.size, dtype=np.int64)
    row[order] = np.arange(order.size)
    post_row, pre_row = row[: post_sender.size], row[post_sender.size :]

    none = np.full(order.size, -1, dtype=np.int64)
    receive = csr_matrix(
        np.concatenate((cut.destinations[is_post], pre_destination)),
        np.concatenate((post_row[post_rank], pre_row)),
        np.concatenate((cut.edges[is_post], none[: pre_row.size])),
        (num_nodes, order.size),
    )
    sources = np.concatenate((cut.sources[post_left], cut.sources[cut.left[~is_post]]))
    senders = np.concatenate((post_sender, pre_sender[pre_rank]))
    wanted = csr_matrix(
        np.concatenate((post_row, pre_row[pre_rank])),
        sources - node_offsets[senders],
        np.concatenate((none[: post_row.size], cut.edges[~is_post])),
        (order.size, 0),
    )
    return ReceiverPlan(
        local=local,
        receive=receive,
        receive_from=_peer_rows(post_sender, pre_sender),
        wanted=SendRows(np.diff(wanted.indptr), wanted.indices, wanted.edges),
    )


def sender_matrix(wanted: SendRows, num_owned: int) -> SparseMatrix:
    """S of a sender that owns ``num_owned`` nodes, from the rows that its receivers want, in the order of receivers."""
    indptr = np.concatenate(([0], np.cumsum(wanted.lengths)))
    return SparseMatrix(indptr, wanted.sources, wanted.edges, num_owned)


def _peer_rows(post_sender: np.ndarray, pre_sender: np.ndarray) -> PeerRows:
    peers = np.unique(np.concatenate((post_sender, pre_sender)))
    post, pre = (np.zeros(peers.size, dtype=np.int64) for _ in range(2))
    np.add.at(post, np.searchsorted(peers, post_sender), 1)
    np.add.at(pre, np.searchsorted(peers, pre_sender), 1)
    return PeerRows(peers.astype(np.int64), post, pre)


def csr_matrix(rows: np.ndarray, columns: np.ndarray, edges: np.ndarray | None, shape: tuple[int, int]) -> SparseMatrix:
    """A CSR matrix of ones from (entries,) rows, columns and edges.

    Entries of a row are sorted by column, and equal entries keep their order, so that sums are reproducible. With None for
    ``edges``, the matrix does not know which edge an entry stands for.
    """
    order = np.lexsort((columns, rows))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=shape[0]))))
    kept = np.empty(0, np.int64) if edges is None else edges[order]
    return SparseMatrix(indptr, columns[order].astype(np.int32), kept, shape[1])
