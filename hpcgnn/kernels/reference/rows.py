"""See :mod:`hpcgnn.kernels.rows`."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    """Write row ``index[k]`` of ``x`` (n, bytes) uint8, zeros for a negative one, to row k of ``out``."""
    out.zero_()
    named = index >= 0
    out[named] = x[index[named].long()]


def cluster(index: Tensor, indptr: Tensor, order: Tensor) -> None:
    """Write the stable order that sorts ``index`` to ``order``, and each row's range in it to ``indptr``."""
    indptr[0] = 0
    torch.cumsum(torch.bincount(index, minlength=indptr.numel() - 1), 0, out=indptr[1:])
    order.copy_(torch.argsort(index, stable=True))
