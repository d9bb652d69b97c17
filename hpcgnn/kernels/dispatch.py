"""One entry to every kernel: checks the arguments, picks the backend, calls it."""

from __future__ import annotations

from types import ModuleType

import torch

from hpcgnn.kernels import jit, keyed, native, reference
from hpcgnn.kernels.csr import Csr

BACKENDS = ("auto", "native", "jit", "reference")
_DTYPES = (torch.float32, torch.float64)


def resolve(backend: str = "auto") -> str:
    """The backend that will run: ``auto`` is native where it was built, else jit.

    Raises:
        ValueError: for an unknown name, or ``native`` where the library is missing.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend == "native" and native.load() is None:
        raise ValueError("backend 'native' was asked for, but hpcgnn was installed without a C++ compiler")
    if backend == "auto":
        return "jit" if native.load() is None else "native"
    return backend


def spmm(
    csr: Csr,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduce: str = "sum",
    out: torch.Tensor | None = None,
    backend: str = "auto",
    *,
    accumulate: bool = True,
    rows: tuple[int, int] | None = None,
) -> torch.Tensor:
    """``csr @ x``: row r is the sum (or mean) over its entries e of ``weight[e] * x[indices[e]]``.

    Args:
        csr: (R, C) sparse matrix.
        x: (C, F) float32 or float64, contiguous rows.
        weight: (entries,) of x's dtype; default ``csr.weight``, and all ones if that is None.
        reduce: ``sum``, or ``mean`` over the entries of a row (0 for an empty row).
        out: (R, F) result to add to (or to overwrite with ``accumulate=False``); a new tensor if None.
        backend: ``auto``, ``native``, ``jit`` or ``reference``.
        rows: compute only this row range ``(first, last)``; for overlapping work with communication.

    Returns:
        ``out``, or the new (R, F) tensor. Not differentiable by itself: see :mod:`hpcgnn.nn.aggregate`.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    weight = csr.weight if weight is None else weight
    _check_spmm(csr, x, weight, reduce, out)
    if reduce == "mean":
        return _mean(csr, x, weight, out, backend, accumulate)
    fresh = out is None
    rows = (0, csr.num_rows) if rows is None else rows
    name = resolve(backend)
    if out is None:
        out = torch.empty(csr.num_rows, x.shape[1], dtype=x.dtype)
    x = x.contiguous()
    if (fresh or not accumulate) and name == "native":
        native.spmm_overwrite(csr, rows, weight, x, out)
        return out
    if fresh or not accumulate:
        out[rows[0] : rows[1]].zero_()
    _module(name).spmm(csr, rows, weight, x, out)
    return out


def _mean(
    csr: Csr, x: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor | None, backend: str, accumulate: bool
) -> torch.Tensor:
    result = spmm(csr, x, weight, backend=backend)
    result /= csr.row_lengths().clamp(min=1).to(x.dtype)[:, None]
    if out is None:
        return result
    return out.add_(result) if accumulate else out.copy_(result)


def index_add(index: torch.Tensor, src: torch.Tensor, num_rows: int, backend: str = "auto") -> torch.Tensor:
    """(num_rows, F) tensor whose row r is the sum of the rows of ``src`` (E, F) with ``index`` (E,) equal to r.

    The sources are clustered by destination first (SuperGCN §3.2.1), so that no two threads write the same row.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    if index.dim() != 1 or index.is_floating_point() or index.numel() != src.shape[0]:
        raise ValueError("index must hold one integer per row of src")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < num_rows:
        raise ValueError(f"index must lie in [0, {num_rows})")
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(index, minlength=num_rows), 0, out=indptr[1:])
    order = torch.argsort(index, stable=True)
    return spmm(Csr(indptr, order, src.shape[0], check=False), src, backend=backend)


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, probability: float, backend: str = "auto") -> torch.Tensor:
    """``x`` (n, F) with each element zeroed with ``probability``, the others divided by ``1 - probability``.

    Whether an element survives depends on (``key``, ``ids[row]``, column) alone. ``ids`` is (n,) int64.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    module = _module(resolve(backend))
    module.dropout(x.contiguous(), ids, key, keyed.threshold(probability), 1 / (1 - probability), out)
    return out


def _module(name: str) -> ModuleType:
    return {"native": native, "jit": jit, "reference": reference}[name]


def _check_spmm(csr: Csr, x: torch.Tensor, weight: torch.Tensor | None, reduce: str, out: torch.Tensor | None) -> None:
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce must be sum or mean, not {reduce!r}")
    if x.dim() != 2 or x.shape[0] != csr.num_cols:
        raise ValueError(f"x must have shape ({csr.num_cols}, F), not {tuple(x.shape)}")
    if x.dtype not in _DTYPES:
        raise ValueError(f"x must be float32 or float64, not {x.dtype}")
    if weight is not None and (weight.shape != (csr.num_entries,) or weight.dtype != x.dtype):
        raise ValueError(f"weight must have shape ({csr.num_entries},) and x's dtype {x.dtype}")
    if weight is not None and not weight.is_contiguous():
        raise ValueError("weight must be contiguous")
    if out is not None and (out.shape != (csr.num_rows, x.shape[1]) or out.dtype != x.dtype or not out.is_contiguous()):
        raise ValueError(f"out must be contiguous with shape ({csr.num_rows}, {x.shape[1]}) and x's dtype {x.dtype}")
