"""The correction of stale rows, by the change of a node's neighbours since the rows were sent.

Unless a norm subtracts the mean of hidden features over all nodes, a step of the optimiser moves the features of many nodes, and
the resulting gradients, in almost the same direction, and in this direction a model is most sensitive. If rows are one epoch
late, training with Adam's momentum can therefore oscillate where it would otherwise converge (docs/studies/staleness). Neighbours
of a node behave alike, so a node estimates the change of its neighbours on other ranks from the change of its neighbours on its
own rank. With the change of the local sum, D = (L x')(t) - (L x')(s), stale rows of epoch s are used in epoch t as

    z(t) ≈ (L x')(t) + R · exchange(S x'(s)) + v (D + k m) / (u + k)

where u = L Dr e is the local part of the aggregation of e, and v = R · exchange(S Dr e) is the part from other ranks; both are
computed once. e (n, 1) states the proportions in which rows move: ones, or, where a plan only copies rows, the number of edges
behind the gradient of a copy (:class:`Copies`). A node with few local neighbours also uses the mean over the boundary nodes, m
= Σ v D / Σ v u, with the weight k of one neighbour. No additional data is sent, and the work amounts to some passes over the
boundary nodes. The same code corrects gradients in backward.

Shapes: n owned nodes, of which b are boundary nodes; F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.nn.linear_map import LinearMap
from hpcgnn.world import World


@dataclass(frozen=True)
class Copies:
    """The neighbours of halo nodes, for a plan that only copies rows of n owned nodes to h halo nodes. The matrices are made
    when they are needed.

    near: a function that makes the (h, n) matrix of edges from halo nodes to owned nodes. edges: a function that makes (n + h,
    1), the number of edges to owned nodes for which each row stands, to which the row's gradient is proportional.
    """

    near: Callable[[], Csr]
    edges: Callable[[], Tensor]


class Correction:
    """The correction of one aggregator, which all layers of a model share.

    counts: (P,) int64 rows to and from each rank. copies: needed where L holds no neighbours. proportions: a function that makes
    e (n, 1); None for ones. nodes: (b,) int64 nodes to which received rows are added.
    """

    def __init__(
        self,
        linear: LinearMap,
        world: World,
        counts: tuple[np.ndarray, np.ndarray],
        copies: Copies | None = None,
        proportions: Callable[[], Tensor] | None = None,
    ) -> None:
        self._linear, self._plan, self._backend = linear, linear.plan, linear.backend
        self._world, self._counts, self.copies, self._proportions = world, counts, copies, proportions
        self._weights: dict[torch.dtype, tuple[Csr, torch.Tensor]] = {}
        self._near: Csr | None = None
        self.nodes = self._plan.receive.indptr.diff().nonzero()[:, 0]  # (b,) int64, to which received rows are added

    @cached_property
    def reverse(self) -> Correction:
        """The correction of the reversed aggregator."""
        proportions = None if self.copies is None else self.copies.edges
        return type(self)(self._linear.reverse(), self._world, self._counts[::-1], proportions=proportions)

    def sums(self, x: Tensor, z: Tensor) -> Tensor:
        """(b, F) sums over the local neighbours of the boundary nodes, from x' (n, F) and z = L x'."""
        if self.copies is None:
            return z.index_select(0, self.nodes)
        if self._near is None:
            halo = self.nodes.cpu() - self._plan.local.num_cols  # halo nodes come after the owned ones
            self._near = self.copies.near().in_order(halo, None).to(z.device)
        return spmm(self._near, x, backend=self._backend)

    def apply(self, z: Tensor, now: Tensor, then: Tensor) -> None:
        """Add the correction of stale rows to ``z`` (n, F).

        now, then: (b, F) :meth:`sums` of this epoch, and of the epoch in which the rows were sent. The first call is collective.
        """
        if z.dtype not in self._weights:
            self._weights[z.dtype] = self._make_weights(z.dtype)
        spread, mean = self._weights[z.dtype]
        change = buffers.empty(now.shape[0] + 1, now.shape[1], now.dtype, now.device)
        torch.sub(now, then, out=change[:-1])
        torch.mm(mean, change[:-1], out=change[-1:])
        spmm(spread, change, out=z, backend=self._backend, accumulate=True)

    def _make_weights(self, dtype: torch.dtype) -> tuple[Csr, torch.Tensor]:
        """Make the matrices (n, b + 1), v / (u + k) in the column of D and k times that in that of m, and (1, b), which
        computes m from D. u uses absolute edge weights, because it measures the number of local neighbours. Collective.
        """
        local, right = self._plan.local, self._linear.right
        device = local.device
        moving = torch.ones(local.num_cols, 1) if self._proportions is None else self._proportions()
        moving = moving.to(device, dtype)
        moving = moving if right is None else moving * right.to(dtype)
        here = self.sums(moving, self._from_here(moving))[:, 0]
        there = self._from_there(moving)[self.nodes, 0]
        prior = float(right.mean()) if right is not None and right.numel() else 1.0
        total = float((there.abs() * here).sum())
        mean = there.abs() / total if total > 0 else torch.zeros_like(there)
        entries = torch.zeros(local.num_rows, dtype=torch.int64, device=device).index_fill_(0, self.nodes, 2)
        indptr = torch.cat((entries.new_zeros(1), entries.cumsum(0)))
        boundary = self.nodes.numel()
        columns = torch.arange(boundary, dtype=torch.int32, device=device)
        columns = torch.stack((columns, torch.full_like(columns, boundary)), 1).flatten()
        known = here + prior  # 0 only where Dr is 0, and such rows do not move
        share = torch.where(known > 0, there / known, torch.zeros_like(there))
        both = torch.stack((share, prior * share), 1).flatten()
        return Csr(indptr, columns, boundary + 1, both, check=False), mean[None, :]

    def _from_here(self, moving: Tensor) -> Tensor:
        """(n, 1): |L| times ``moving`` (n, 1)."""
        return spmm(signless(self._plan.local), moving, backend=self._backend)

    def _from_there(self, moving: Tensor) -> Tensor:
        """(n, 1): R · exchange(S ``moving``), of ``moving`` (n, 1). Collective."""
        sent = spmm(self._plan.send, moving, backend=self._backend)
        received, _ = self._world.alltoallv(sent, self._counts[0])
        return spmm(self._plan.receive, received, backend=self._backend)


def signless(matrix: Csr) -> Csr:
    """The matrix with the absolute values of its weights."""
    return matrix if matrix.weight is None else matrix.with_weight(matrix.weight.abs())
