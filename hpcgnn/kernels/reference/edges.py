"""See :mod:`hpcgnn.kernels.edges`."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.kernels.csr import Csr


def sddmm(csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
    """Write ``op`` of row r of ``a`` and row c of ``b`` to ``out`` for each entry (r, c); ``left`` is ``a`` alone."""
    left = a[csr.entry_rows()]
    if b is None:
        out.copy_(left)
    elif op == "add":
        torch.add(left, b[csr.indices.long()], out=out)
    else:
        products = left * b[csr.indices.long()]
        out.copy_(products.view(csr.num_entries, heads, a.shape[1] // heads).sum(2))


def edge_softmax(csr: Csr, scores: Tensor, out: Tensor) -> None:
    """Write the softmax over each row's entries of ``scores`` (entries, H) to ``out``."""
    rows = csr.entry_rows()
    top = scores.new_full((csr.num_rows, scores.shape[1]), -torch.inf)
    top.scatter_reduce_(0, rows[:, None].expand_as(scores), scores, "amax")
    top[top == -torch.inf] = 0
    values = torch.exp(scores - top[rows])
    total = scores.new_zeros(top.shape).index_add_(0, rows, values)
    total[total == 0] = 1
    torch.div(values, total[rows], out=out)


def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (entries, H), to ``out``."""
    rows = csr.entry_rows()
    total = alpha.new_zeros(csr.num_rows, alpha.shape[1]).index_add_(0, rows, alpha * gradient)
    torch.mul(alpha, gradient - total[rows], out=out)


def edge_sum(csr: Csr, values: Tensor, out: Tensor) -> None:
    """Write the sum of each row's entries of ``values`` (entries, F) to ``out`` (R, F)."""
    out.zero_().index_add_(0, csr.entry_rows(), values)
