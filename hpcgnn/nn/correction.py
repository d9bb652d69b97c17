"""The correction of stale rows: by how much a node's neighbours have moved since they were sent.

Where no batch normalisation takes the mean out of hidden features, a step of the optimiser moves the features of many nodes,
and the gradients that answer, in much the same way: this is the direction in which a model is most sensitive. A delay of one
epoch in it, with the momentum of Adam, lets training swing where it would settle without (docs/studies/staleness). Neighbours are
alike, so that a node can tell how its neighbours on other ranks have moved from those on its own. With what it has of these,
D = (L x')(t) - (L x')(s), stale rows of epoch s are used in epoch t as

    z(t) ≈ (L x')(t) + R · exchange(S x'(s)) + v (D + k m) / (u + k)

where u = L Dr e and v = R · exchange(S Dr e) are what the aggregation makes of e here and from there; they are made once. e says
in what proportion rows move: ones, or where a plan only copies rows, the edges behind a copy's gradient (:class:`Copies`).
A node with few neighbours here is told what others at the boundary are: m = Σ v D / Σ v u is their mean, and k the weight of
one neighbour. Nothing more is sent, and the work is that of some passes over the nodes at the boundary. In backward the same
holds for gradients, by the same code.

Shapes: n owned nodes, b of them at the boundary, F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm import World
from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.plan import AggregationPlan


@dataclass(frozen=True)
class _Weights:
    """spread: (n, b + 1) of v / (u + k) for D, and of k times it for m. mean: (1, b) of what makes m from D."""

    spread: Csr
    mean: torch.Tensor


@dataclass(frozen=True)
class Copies:
    """The matrix that stands for neighbours where a plan only copies rows of n owned nodes, to h halo nodes; made when it is
    needed.

    near: makes the (h, n) matrix of halo nodes and the owned nodes that they have edges to. edges: makes (n + h, 1) how many
    edges to owned nodes each row stands for: so much of a gradient comes from there.
    """

    near: Callable[[], Csr]
    edges: Callable[[], torch.Tensor]


class Correction:
    """Of one aggregator; those of a model's layers share it.

    counts: (P,) int64 rows to and from each rank. left, right: (n, 1) diagonals Dl and Dr, or None for the identity.
    copies: where L does not say who is a neighbour. proportions: makes e (n, 1), ones where it is not given. nodes: (b,) int64 to
    which received rows are added.
    """

    def __init__(
        self,
        plan: AggregationPlan[Csr],
        world: World,
        counts: tuple[np.ndarray, np.ndarray],
        left: torch.Tensor | None,
        right: torch.Tensor | None,
        backend: str,
        copies: Copies | None = None,
        proportions: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        self._plan, self._world, self._counts = plan, world, counts
        self._left, self._right, self._backend, self._proportions = left, right, backend, proportions
        self._weights: dict[torch.dtype, _Weights] = {}
        self.copies = copies
        self._near: Csr | None = None
        self._reverse: Correction | None = None
        self.nodes = self._boundary()

    def _boundary(self) -> torch.Tensor:
        """(b,) int64."""
        return self._plan.receive.indptr.diff().nonzero()[:, 0]

    def reverse(self) -> Correction:
        """Of the reversed aggregator."""
        if self._reverse is None:
            self._reverse = self._reversed(None if self.copies is None else self.copies.edges)
        return self._reverse

    def _reversed(self, proportions: Callable[[], torch.Tensor] | None) -> Correction:
        plan, counts = self._plan.reverse(), self._counts[::-1]
        about = plan, self._world, counts, self._right, self._left, self._backend
        return Correction(*about, proportions=proportions)

    def sums(self, x: torch.Tensor | Int8Rows, z: torch.Tensor) -> torch.Tensor:
        """(b, F) what nodes at the boundary have of their neighbours here; x' (n, F) and z = L x'."""
        if self.copies is None:
            return z.index_select(0, self.nodes)
        if self._near is None:
            halo = self.nodes.cpu() - self._plan.local.num_cols  # these are behind the owned ones
            self._near = self.copies.near().in_order(halo, None).to(z.device)
        return spmm(self._near, x if isinstance(x, torch.Tensor) else x.float(), backend=self._backend)

    def apply(self, z: torch.Tensor, now: torch.Tensor, then: torch.Tensor) -> None:
        """Add to ``z`` (n, F) what stale rows lack. now, then: (b, F) :meth:`sums` of this epoch and of that of the rows.

        Collective when it is first called.
        """
        if z.dtype not in self._weights:
            self._weights[z.dtype] = self._make_weights(z.dtype)
        weights = self._weights[z.dtype]
        change = buffers.empty(now.shape[0] + 1, now.shape[1], now.dtype, now.device)
        torch.sub(now, then, out=change[:-1])
        torch.mm(weights.mean, change[:-1], out=change[-1:])
        spmm(weights.spread, change, out=z, backend=self._backend, accumulate=True)

    def _make_weights(self, dtype: torch.dtype) -> _Weights:
        """Collective. Signs of edge weights do not count in u: it is to say how much a node has of its neighbours."""
        local = self._plan.local
        where = local.device
        moving = torch.ones(local.num_cols, 1) if self._proportions is None else self._proportions()
        moving = moving.to(where, dtype)
        moving = moving if self._right is None else moving * self._right.to(dtype)
        here = self.sums(moving, self._from_here(moving))[:, 0]
        there = self._from_there(moving)[self.nodes, 0]
        prior = float(self._right.mean()) if self._right is not None and self._right.numel() else 1.0
        total = float((there.abs() * here).sum())
        mean = there.abs() / total if total > 0 else torch.zeros_like(there)
        entries = torch.zeros(local.num_rows, dtype=torch.int64, device=where).index_fill_(0, self.nodes, 2)
        indptr = torch.cat((entries.new_zeros(1), entries.cumsum(0)))
        boundary = self.nodes.numel()
        columns = torch.arange(boundary, dtype=torch.int32, device=where)
        columns = torch.stack((columns, torch.full_like(columns, boundary)), 1).flatten()
        known = here + prior  # 0 only where Dr is, and nothing moves
        share = torch.where(known > 0, there / known, torch.zeros_like(there))
        both = torch.stack((share, prior * share), 1).flatten()
        return _Weights(Csr(indptr, columns, boundary + 1, both, check=False), mean[None, :])

    def _from_here(self, moving: torch.Tensor) -> torch.Tensor:
        """(n, 1) |L| moving, of (n, 1)."""
        return spmm(signless(self._plan.local), moving, backend=self._backend)

    def _from_there(self, moving: torch.Tensor) -> torch.Tensor:
        """(n, 1) R · exchange(S moving), of (n, 1). Collective."""
        sent = spmm(self._plan.send, moving, backend=self._backend)
        received, _ = self._world.alltoallv(sent, self._counts[0])
        return spmm(self._plan.receive, received, backend=self._backend)


def signless(matrix: Csr) -> Csr:
    """With the sizes of its weights."""
    return matrix if matrix.weight is None else matrix.with_weight(matrix.weight.abs())
