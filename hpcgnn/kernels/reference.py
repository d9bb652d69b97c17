"""The kernels in plain torch and numpy: slow, obvious, and what the others are tested against."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.kernels import keyed
from hpcgnn.kernels.csr import Csr


def spmm(csr: Csr, rows: tuple[int, int], weight: torch.Tensor | None, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``."""
    first, last = rows
    begin, end = int(csr.indptr[first]), int(csr.indptr[last])
    lengths = csr.indptr[first + 1 : last + 1] - csr.indptr[first:last]
    target = torch.repeat_interleave(torch.arange(first, last), lengths)
    values = x[csr.indices[begin:end].long()]
    if weight is not None:
        values = values * weight[begin:end, None]
    out.index_add_(0, target, values)


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, threshold: int, scale: float, out: torch.Tensor) -> None:
    """``out = x * scale`` where kept, else 0; the mask is a function of (key, id, column)."""
    hashes = keyed.row_hashes(key, ids.numpy())
    kept = keyed.draws(hashes[:, None], np.arange(x.shape[1])[None, :]) >= np.uint32(threshold)
    torch.mul(x, scale, out=out)
    out.masked_fill_(torch.from_numpy(~kept), 0)
