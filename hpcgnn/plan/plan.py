"""The weight-free plan of one rank: ``z = L x + R · exchange(S x)``.

The same plan serves every linear aggregator, because scaling rows commutes with it, and its reverse is the same formula
on the transposes: ``dx = Lᵀ dz + Sᵀ · exchange(Rᵀ dz)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

STRATEGIES = ("pre", "post", "hybrid")


@dataclass(frozen=True)
class SparseMatrix:
    """CSR of ones on disk and in messages.

    indptr: (rows + 1,) int64; indices: (entries,) int32; edges: (entries,) int64 position in ``parts.h5`` of the edge that
    an entry stands for, -1 for an entry that only carries a row from S to R; (0,) where nobody asked for them.
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
    """Rows that travel between this rank and its peers, peers ascending; per peer first *post* rows, then *pre* rows.

    peers, post, pre: (n,) int64; a peer with no rows is left out.
    """

    peers: np.ndarray
    post: np.ndarray
    pre: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """(n,) int64 rows per peer."""
        return self.post + self.pre

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows.sum())

    def is_post(self) -> np.ndarray:
        """(total,) bool, which of the rows are *post* rows."""
        kinds = np.stack((np.ones_like(self.post), np.zeros_like(self.pre)), axis=1).astype(bool).ravel()
        return np.repeat(kinds, np.stack((self.post, self.pre), axis=1).ravel())

    def counts(self, num_ranks: int) -> np.ndarray:
        """(num_ranks,) int64 rows per rank, for alltoallv."""
        counts = np.zeros(num_ranks, dtype=np.int64)
        counts[self.peers] = self.rows
        return counts


class Transposable(Protocol):
    """What a plan's matrices must offer."""

    def transpose(self) -> Transposable:
        """The transposed matrix."""
        ...


class Orderable(Protocol):
    """What a plan's matrices must offer to be put in another order."""

    def in_order(self, rows: Any, columns: Any) -> Orderable:
        """The matrix with rows and columns in another order; None leaves them."""
        ...


M = TypeVar("M")
N = TypeVar("N")
T = TypeVar("T", bound=Transposable)
U = TypeVar("U", bound=Orderable)


@dataclass(frozen=True)
class AggregationPlan(Generic[M]):
    """One rank's plan.

    local (L): (owned, owned) edges inside the part. send (S): (send rows, owned), grouped by receiver. receive (R):
    (owned, received rows), columns grouped by sender. send_to and receive_from count those rows per peer.
    """

    local: M
    send: M
    receive: M
    send_to: PeerRows
    receive_from: PeerRows

    def reverse(self: AggregationPlan[T]) -> AggregationPlan[T]:
        """The plan of the backward pass: transposed matrices, sender and receiver exchanged."""
        return AggregationPlan(
            local=self.local.transpose(),  # type: ignore[arg-type]
            send=self.receive.transpose(),  # type: ignore[arg-type]
            receive=self.send.transpose(),  # type: ignore[arg-type]
            send_to=self.receive_from,
            receive_from=self.send_to,
        )

    def map(self, function: Callable[[M], N]) -> AggregationPlan[N]:
        """The same plan with ``function`` applied to its three matrices."""
        return AggregationPlan(
            function(self.local), function(self.send), function(self.receive), self.send_to, self.receive_from
        )

    def in_order(self: AggregationPlan[U], nodes: Any) -> AggregationPlan[U]:
        """The plan of the same nodes in another order: new node k is node ``nodes[k]`` (n,).

        Rows that travel keep their order, so the other ranks need not know.
        """
        return AggregationPlan(
            local=self.local.in_order(nodes, nodes),  # type: ignore[arg-type]
            send=self.send.in_order(None, nodes),  # type: ignore[arg-type]
            receive=self.receive.in_order(nodes, None),  # type: ignore[arg-type]
            send_to=self.send_to,
            receive_from=self.receive_from,
        )
