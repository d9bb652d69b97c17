"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import torch

from hpcgnn.kernels.csr import Csr, as_columns


def prepare(csr: Csr, weight: torch.Tensor | None, x: torch.Tensor, reduce: str) -> None:
    """Nothing has to be made of ``x`` before :func:`spmm`."""


def spmm(
    csr: Csr,
    rows: tuple[int, int],
    weight: torch.Tensor | None,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    reduce: str,
    accumulate: bool,
    out: torch.Tensor,
    prepared: None = None,
) -> None:
    """Write rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``, or add them."""
    first, last = rows
    begin, end = int(csr.indptr[first]), int(csr.indptr[last])
    lengths = csr.indptr[first + 1 : last + 1] - csr.indptr[first:last]
    target = torch.repeat_interleave(torch.arange(last - first), lengths)
    source = csr.indices[begin:end].long()
    values = x[source].to(out.dtype)
    if scale is not None:
        values = values * scale[source, None]
    if weight is not None:
        weight = as_columns(weight[begin:end])
        values = values * weight.repeat_interleave(values.shape[1] // weight.shape[1], dim=1)
    result = out.new_zeros(last - first, out.shape[1])
    if reduce == "max":
        result.fill_(-torch.inf).scatter_reduce_(0, target[:, None].expand_as(values), values, "amax")
        result[lengths == 0] = 0
        if accumulate:
            result = torch.where((lengths == 0)[:, None], out[first:last], torch.maximum(result, out[first:last]))
    else:
        result.index_add_(0, target, values)
        if reduce == "mean":
            result /= lengths.clamp(min=1).to(out.dtype)[:, None]
        if accumulate:
            result += out[first:last]
    out[first:last] = result
