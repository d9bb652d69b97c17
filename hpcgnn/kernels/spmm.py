"""The product of a sparse and a dense matrix, and sums of rows by an index made from it, on every backend (SuperGCN §3.2).

These functions are not differentiable; :mod:`hpcgnn.kernels.autograd` wraps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_choice
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import SPMM
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.rows import cluster

REDUCTIONS = ("sum", "mean")
# The types in which features may be stored, and the types in which they are added.
_VALUE_TYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
    torch.int8: torch.float32,
}


def spmm(
    csr: Csr,
    x: Tensor,
    weight: Tensor | None = None,
    reduce: str = "sum",
    out: Tensor | None = None,
    backend: str = "auto",
    *,
    scale: Tensor | None = None,
    accumulate: bool = True,
) -> Tensor:
    """``csr @ x``: row r is the sum of ``weight[e] * x[indices[e]]`` over its entries e.

    Args:
        csr: (R, C) sparse matrix.
        x: (C, F) float32 or float64; or bfloat16 or int8, which are half and a quarter of the bytes to gather, and are added in
            float32.
        weight: (entries,), or (entries, H) for H equal groups of columns with a weight each. Of the result's dtype; None takes
            ``csr.weight``, and ones if that is None.
        reduce: ``sum``, or ``mean``, the sum divided by the number of the row's entries. Rows without entries give 0.
        out: (R, F) float32 (float64 for float64 ``x``) tensor to which the result is added; None makes a new tensor.
        backend: ``auto``, or one of :func:`hpcgnn.kernels.backends`.
        scale: (C,) float32, required for int8 ``x``: row c stands for ``scale[c] * x[c]``.
        accumulate: False overwrites ``out`` instead of adding to it.

    Returns:
        ``out``, or the new (R, F) tensor.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    weight = csr.weight if weight is None else weight
    _check_spmm(csr, x, weight, reduce, out, scale)
    kernels = choose(SPMM, backend, x=x, weight=weight, out=out, scale=scale, csr=csr.indices)
    if reduce == "mean":
        return _mean(csr, spmm(csr, x, weight, backend=backend, scale=scale), out, accumulate)
    accumulate = accumulate and out is not None
    if out is None:
        out = buffers.empty(csr.num_rows, x.shape[1], _VALUE_TYPE[x.dtype], x.device)
    kernels.spmm(csr, weight, x.contiguous(), scale, accumulate, out)
    return out


def multiply(
    csr: Csr,
    x: Tensor,
    out: Tensor | None = None,
    backend: str = "auto",
    *,
    scale: Tensor | None = None,
    accumulate: bool = True,
) -> Tensor:
    """:func:`spmm` for callers of this package, in each epoch: the kernels are chosen once for each matrix, type and width.

    Only what protects memory is checked: shapes and types of ``x`` and ``out``, and that the host has ``x`` if it has ``csr``.
    ``out`` must be on the same device, and ``scale`` must be (C,) float32.
    """
    wrong = x.dim() != 2 or x.shape[0] != csr.num_cols or type(x) is not Tensor or x.is_neg()
    wrong = wrong or (x.dtype is torch.int8) != (scale is not None) or x.is_cpu != csr.indices.is_cpu
    if out is not None:
        fits = out.shape == (csr.num_rows, x.shape[-1]) and out.dtype is _VALUE_TYPE.get(x.dtype)
        wrong = wrong or not (fits and out.is_contiguous())
    if wrong:
        return spmm(csr, x, out=out, backend=backend, scale=scale, accumulate=accumulate)
    run = csr.products.get((x.dtype, x.shape[1], backend)) or _bind(csr, x, backend, scale)
    if out is None:
        out, accumulate = buffers.empty(csr.num_rows, x.shape[1], _VALUE_TYPE[x.dtype], x.device), False
    run(csr, csr.weight, x.contiguous(), scale, accumulate, out)
    return out


def _bind(csr: Csr, x: Tensor, backend: str, scale: Tensor | None) -> Callable[..., None]:
    _check_spmm(csr, x, csr.weight, "sum", None, scale)
    kernels: Any = choose(SPMM, backend, x=x, weight=csr.weight, scale=scale, csr=csr.indices)
    run = kernels.bind(csr, x.dtype, x.shape[1]) if hasattr(kernels, "bind") else kernels.spmm
    csr.products[x.dtype, x.shape[1], backend] = run
    return run


def _mean(csr: Csr, sums: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """``sums``, which is overwritten, divided by the rows' numbers of entries. Training does not use this: it scales rows by a
    plan's diagonal."""
    sums /= csr.row_lengths().clamp(min=1).to(sums.dtype)[:, None]
    if out is None:
        return sums
    return out.add_(sums) if accumulate else out.copy_(sums)


def add_rows(index: Tensor, src: Tensor, num_rows: int, backend: str = "auto") -> Tensor:
    """(num_rows, F) tensor whose row r is the sum of the rows of ``src`` (E, F) with ``index`` (E,) equal to r.

    This is the gradient of :func:`hpcgnn.kernels.gather_rows`. The sources are clustered by destination first (SuperGCN §3.2.1),
    so that no two threads write the same row.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    return spmm(clustered(index, src, num_rows, backend), src, backend=backend)


def clustered(index: Tensor, src: Tensor, num_rows: int, backend: str = "auto") -> Csr:
    """The (num_rows, E) matrix that adds row k of ``src`` (E, ...) to row ``index[k]``, for ``index`` (E,)."""
    if index.dim() != 1 or index.numel() != src.shape[0]:
        raise WrongValueError("index must hold one int32 or int64 integer per row of src")
    if src.shape[0] > 2**31 - 1:
        raise WrongValueError(f"src must have at most 2**31 - 1 rows, not {src.shape[0]}")
    indptr, order = cluster(index, num_rows, backend)
    matrix = Csr(indptr, order, src.shape[0], check=False)
    matrix.each_column_once = True
    return matrix


def _check_spmm(
    csr: Csr, x: Tensor, weight: Tensor | None, reduce: str, out: Tensor | None, scale: Tensor | None
) -> None:
    check_choice("reduce", reduce, REDUCTIONS)
    if x.dim() != 2 or x.shape[0] != csr.num_cols:
        raise WrongValueError(f"x must have shape ({csr.num_cols}, F), not {tuple(x.shape)}")
    if x.dtype not in _VALUE_TYPE:
        raise WrongValueError(f"x must be float32, float64, bfloat16 or int8, not {x.dtype}")
    value_type, width = _VALUE_TYPE[x.dtype], x.shape[1]
    if weight is not None:
        _check_weight(csr, weight, width, value_type)
    if (scale is not None) != (x.dtype == torch.int8):
        raise WrongValueError("scale must be given for int8 x, and for no other")
    if scale is not None and (
        scale.shape != (csr.num_cols,) or scale.dtype != torch.float32 or not scale.is_contiguous()
    ):
        raise WrongValueError(f"scale must be contiguous float32 of shape ({csr.num_cols},)")
    if out is not None and (out.shape != (csr.num_rows, width) or out.dtype != value_type or not out.is_contiguous()):
        raise WrongValueError(f"out must be contiguous {value_type} of shape ({csr.num_rows}, {width})")
    if out is not None and out.numel() and out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise WrongValueError("out must not share memory with x, whose rows are read after rows of out are written")


def _check_weight(csr: Csr, weight: Tensor, width: int, value_type: torch.dtype) -> None:
    if weight.dim() not in (1, 2) or weight.shape[0] != csr.num_entries or weight.dtype != value_type:
        raise WrongValueError(
            f"weight must be {value_type} of shape ({csr.num_entries},) or ({csr.num_entries}, heads)"
        )
    if weight.dim() == 2 and (weight.shape[1] == 0 or width % weight.shape[1]):
        raise WrongValueError(f"weight has {weight.shape[1]} heads, which do not divide the {width} columns of x")
    if not weight.is_contiguous():
        raise WrongValueError("weight must be contiguous")
