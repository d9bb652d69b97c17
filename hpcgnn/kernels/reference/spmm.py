"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.kernels.csr import Csr, as_columns


def spmm(csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor) -> None:
    """Write ``csr @ x`` to ``out``, or add it."""
    source = csr.indices.long()
    values = x[source].to(out.dtype)
    if scale is not None:
        values = values * scale[source, None]
    if weight is not None:
        weight = as_columns(weight)
        values = values * weight.repeat_interleave(values.shape[1] // weight.shape[1], dim=1)
    result = torch.zeros_like(out).index_add_(0, csr.entry_rows(), values)
    if accumulate:
        result += out
    out.copy_(result)
