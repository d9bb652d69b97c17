"""The weight-free plan of one rank: ``z = L x + R · exchange(S x)``.

The same plan serves every linear aggregator (sum, mean, GCN), because these differ only in factors of whole rows, which are
applied before and after it. The backward pass is the same formula on the transposes: ``dx = Lᵀ dz + Sᵀ · exchange(Rᵀ dz)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

STRATEGIES = ("pre", "post", "hybrid")


@dataclass(frozen=True)
class SparseMatrix:
    """A CSR matrix of ones, as files and messages hold it.

    indptr: (rows + 1,) int64; indices: (entries,) int32; edges: (entries,) int64 position in ``parts.h5`` of the edge that
    an entry stands for, or -1 for an entry that only moves a row from S to R; (0,) where the caller did not ask for edges.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edges: np.ndarray
    num_cols: int

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.indptr.size - 1


@dataclass(frozen=True)
class PeerRows:
    """Numbers of rows that this rank sends to its peers, or receives from them; for each peer *post* rows come first.

    peers: (n,) int64 ranks, ascending, each with at least one row. post, pre: (n,) int64 rows of each kind.
    """

    peers: np.ndarray
    post: np.ndarray
    pre: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray) -> PeerRows:
        """The inverse of :meth:`table`."""
        peers = np.flatnonzero(table.any(axis=1))
        post, pre = table[peers].astype(np.int64).T
        return cls(peers, post, pre)

    def table(self, num_ranks: int) -> np.ndarray:
        """(num_ranks, 2) int64 *post* and *pre* rows per rank, 0 for ranks that are no peers."""
        table = np.zeros((num_ranks, 2), dtype=np.int64)
        table[self.peers] = np.stack((self.post, self.pre), axis=1)
        return table

    def counts(self, num_ranks: int) -> np.ndarray:
        """(num_ranks,) int64 rows of both kinds per rank, as alltoallv takes them."""
        return self.table(num_ranks).sum(axis=1)

    @property
    def rows(self) -> np.ndarray:
        """(n,) int64 rows of both kinds per peer."""
        return self.post + self.pre

    @property
    def total(self) -> int:
        """Number of rows of all peers."""
        return int(self.rows.sum())

    def is_post(self) -> np.ndarray:
        """(total,) bool, whether each row is a *post* row."""
        kinds = np.stack((np.ones_like(self.post), np.zeros_like(self.pre)), axis=1).astype(bool).ravel()
        return np.repeat(kinds, np.stack((self.post, self.pre), axis=1).ravel())


M = TypeVar("M")
N = TypeVar("N")
T = TypeVar("T", bound=Any)  # a ``Csr``, which can be transposed and put into another order


@dataclass(frozen=True)
class AggregationPlan(Generic[M]):
    """One rank's plan for ``z = L x + R · exchange(S x)``.

    local (L): (owned, owned) edges inside the part. send (S): (rows sent, owned), rows grouped by receiver. receive (R):
    (owned, rows received), columns grouped by sender. send_to, receive_from: numbers of rows sent and received, by peer.
    """

    local: M
    send: M
    receive: M
    send_to: PeerRows
    receive_from: PeerRows

    def reverse(self: AggregationPlan[T]) -> AggregationPlan[T]:
        """The plan of the backward pass: the matrices are transposed, and S and R change places."""
        return AggregationPlan(
            local=self.local.transpose(),
            send=self.receive.transpose(),
            receive=self.send.transpose(),
            send_to=self.receive_from,
            receive_from=self.send_to,
        )

    def map(self, function: Callable[[M], N]) -> AggregationPlan[N]:
        """The same plan with ``function`` applied to its three matrices."""
        local, send, receive = map(function, (self.local, self.send, self.receive))
        return AggregationPlan(local, send, receive, self.send_to, self.receive_from)

    def in_order(self: AggregationPlan[T], nodes: Any) -> AggregationPlan[T]:
        """The plan of the same n nodes in another order: new node k is old node ``nodes[k]``; nodes: (n,).

        Rows that are sent and received keep their order, so the other ranks need not know the new one.
        """
        return AggregationPlan(
            local=self.local.in_order(nodes, nodes),
            send=self.send.in_order(None, nodes),
            receive=self.receive.in_order(nodes, None),
            send_to=self.send_to,
            receive_from=self.receive_from,
        )


class PairRows(NamedTuple):
    """Numbers of rows of every ordered pair of ranks that exchanges any; each array is (pairs,) int64."""

    sender: np.ndarray
    receiver: np.ndarray
    post: np.ndarray
    pre: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """(pairs,) rows of both kinds."""
        return self.pre + self.post

    def by_rank(self, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
        """(num_parts,) int64 rows that each rank sends, and that each receives."""
        ends = (self.sender, self.receiver)
        sent, received = (np.bincount(end, weights=self.rows, minlength=num_parts).astype(np.int64) for end in ends)
        return sent, received


def describe(pairs: PairRows, num_parts: int, bytes_per_row: int) -> dict[str, Any]:
    """Totals and maxima of rows and bytes of one aggregation in one direction, as ``hpcgnn plan --json`` prints them."""
    sent, received = pairs.by_rank(num_parts)
    return {
        "pairs": int(pairs.rows.size),
        "rows": int(pairs.rows.sum()),
        "post_rows": int(pairs.post.sum()),
        "pre_rows": int(pairs.pre.sum()),
        "bytes": int(pairs.rows.sum()) * bytes_per_row,
        "max_rows_sent": int(sent.max(initial=0)),
        "max_rows_received": int(received.max(initial=0)),
        "max_rows_pair": int(pairs.rows.max(initial=0)),
    }


def max_over_mean(amounts: np.ndarray) -> float:
    """The largest of the amounts (P,) relative to their mean; 1 if all are 0."""
    return float(amounts.max() / amounts.mean()) if amounts.any() else 1.0


def owners_of(positions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The range of each position, for ranges that begin at ``offsets``, such as those of the nodes of each rank."""
    return np.searchsorted(offsets, positions, side="right") - 1


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """(n + 1,) int64: 0, then the cumulative sums of ``counts`` (n,)."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The concatenation of ``arange(begin, begin + length)`` over all pairs."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
