"""What rows of an epoch before lack: by how much rows have moved together since they were sent.

Where no batch normalisation takes the mean out of hidden features, a step of the optimiser moves the features of all nodes, and
the gradients that answer, in much the same way: this is the direction in which a model is most sensitive. A delay of one epoch
in it, with the momentum of Adam, lets training swing where it would settle without (docs/staleness.md). What
rows have in common is the same everywhere, so that a rank can tell it from its own. With m the mean of the rows that this rank
sends, stale rows of epoch s are used in epoch t as

    x(t) ≈ x(s) + 1 (m(t) - m(s)),   so that   z = L x' + R · exchange(S x'(s)) + v (m(t) - m(s))

where v = R · exchange(S Dr 1) is what the aggregation makes of ones, and is made once. Nothing more is sent, and the work is a
sum over the rows at the boundary and an addition to z. In backward the same holds for gradients, by the same code.

Shapes: n owned nodes, F columns.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from hpcgnn.comm import World
from hpcgnn.host import host_values
from hpcgnn.kernels import Csr, spmm
from hpcgnn.plan import AggregationPlan


class Correction:
    """Of one aggregator; those of a model's layers share it.

    counts: (P,) int64 rows to and from each rank. left, right: (n, 1) diagonals Dl and Dr, or None for the identity.
    """

    def __init__(
        self,
        plan: AggregationPlan[Csr],
        world: World,
        counts: tuple[np.ndarray, np.ndarray],
        left: torch.Tensor | None,
        right: torch.Tensor | None,
        backend: str,
    ) -> None:
        self._plan, self._world, self._counts = plan, world, counts
        self._left, self._right, self._backend = left, right, backend
        self._shares: dict[torch.dtype, Csr] = {}  # kept, as a matrix keeps what makes its products fast
        self._reach: torch.Tensor | None = None  # no cached property: these lock each other out, and it is collective

    @cached_property
    def reverse(self) -> Correction:
        """Of the reversed aggregator."""
        return Correction(self._plan.reverse(), self._world, self._counts[::-1], self._right, self._left, self._backend)

    def level(self, x: torch.Tensor) -> torch.Tensor:
        """(F,) m, the mean of the rows that this rank sends, each as often as it is in them; from x' (n, F)."""
        if x.dtype not in self._shares:
            self._shares[x.dtype] = self._what_is_sent(x.dtype)
        return spmm(self._shares[x.dtype], x, backend=self._backend)[0]

    def apply(self, z: torch.Tensor, moved: torch.Tensor) -> None:
        """``z`` (n, F) += v times ``moved`` (F,), what m has changed. Collective when it is first called."""
        if self._reach is None:
            self._reach = self._what_becomes_of_ones(z.dtype)
        z.addcmul_(self._reach, moved)

    def _what_is_sent(self, dtype: torch.dtype) -> Csr:
        """(1, n): what each row of x' has in the mean of rows of x, so that it sums to 1 over Dr.

        Signs of edge weights do not count here: a mean is to be one.
        """
        send = self._plan.send
        weight = torch.ones(send.num_entries) if send.weight is None else send.weight.abs()
        sums = torch.zeros(send.num_cols, dtype=torch.float64).index_add_(0, send.indices.long(), weight.double())
        nodes = sums.nonzero()[:, 0]
        total = (sums if self._right is None else sums * self._right[:, 0].double()).sum()
        shares = sums[nodes] / total if total > 0 else torch.zeros(nodes.numel(), dtype=torch.float64)
        return Csr(
            torch.tensor([0, nodes.numel()]), nodes.to(torch.int32), send.num_cols, shares.to(dtype), check=False
        )

    def _what_becomes_of_ones(self, dtype: torch.dtype) -> torch.Tensor:
        """(n, 1) v. Collective."""
        send, receive = self._plan.send, self._plan.receive
        ones = torch.ones(send.num_cols, 1, dtype=dtype) if self._right is None else self._right.to(dtype)
        sent = spmm(send, ones.contiguous(), backend=self._backend)
        received, _ = self._world.alltoallv(host_values(sent), self._counts[0])
        return spmm(receive, torch.as_tensor(received), backend=self._backend)
