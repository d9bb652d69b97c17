"""Operators over the entries ("edges") of a sparse matrix, on every backend.

Shapes: R rows, C columns, F features, H heads. The values of the matrix (``csr.weight``) are ignored. These functions are not
differentiable; :mod:`hpcgnn.kernels.autograd` wraps them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_choice, check_whole
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import EDGES
from hpcgnn.kernels.csr import Csr, as_columns

OPERATIONS = ("dot", "add")
_TYPES = (torch.float32, torch.float64)


def sddmm(csr: Csr, a: Tensor, b: Tensor, op: str = "dot", heads: int | None = None, backend: str = "auto") -> Tensor:
    """A value for each entry (r, c) from the two rows that it joins, ``a[r]`` and ``b[c]``.

    Args:
        csr: (R, C) sparse matrix.
        a: (R, F) float32 or float64.
        b: (C, F) of the same dtype.
        op: ``dot``, the dot product of the two rows, or ``add``, their sum.
        heads: for ``dot``, the number of equal groups of columns, each with a product of its own.
        backend: ``auto``, or one of :func:`hpcgnn.kernels.backends`.

    Returns:
        ``dot``: (entries,), or (entries, heads) if ``heads`` is given; ``add``: (entries, F).

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_sddmm(csr, a, b, op, heads)
    width = a.shape[1] if op == "add" else heads or 1
    kernels = choose(EDGES, backend, a=a, b=b, csr=csr.indices)
    out = buffers.empty(csr.num_entries, width, a.dtype, a.device)
    if out.numel():
        kernels.sddmm(csr, a.contiguous(), b.contiguous(), op, heads or 1, out)
    return out[:, 0] if op == "dot" and heads is None else out


def edge_softmax(csr: Csr, scores: Tensor, backend: str = "auto") -> Tensor:
    """``scores`` (entries,) or (entries, H), float32 or float64, with a softmax over the entries of each row.

    A score of -inf gives 0, and a row of nothing else gives zeros; a NaN, or +inf, makes its row NaN. In float32, scores
    more than 87 below the row's largest give 0.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_entries(csr, scores, "scores")
    columns = as_columns(scores).contiguous()
    kernels = choose(EDGES, backend, scores=scores, csr=csr.indices)
    out = buffers.empty(csr.num_entries, columns.shape[1], scores.dtype, scores.device)
    if out.numel():
        kernels.edge_softmax(csr, columns, out)
    return out.view(scores.shape)


def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, backend: str = "auto") -> Tensor:
    """The gradient of the scores, from the softmax ``alpha`` and its ``gradient``; all (entries,) or (entries, H)."""
    _check_entries(csr, alpha, "alpha")
    if gradient.shape != alpha.shape or gradient.dtype != alpha.dtype:
        raise WrongValueError(f"gradient must be {alpha.dtype} of shape {tuple(alpha.shape)}")
    alpha_columns, gradient_columns = as_columns(alpha).contiguous(), as_columns(gradient).contiguous()
    kernels = choose(EDGES, backend, alpha=alpha, gradient=gradient, csr=csr.indices)
    out = buffers.empty(csr.num_entries, alpha_columns.shape[1], alpha.dtype, alpha.device)
    if out.numel():
        kernels.edge_softmax_backward(csr, alpha_columns, gradient_columns, out)
    return out.view(alpha.shape)


def edge_sum(csr: Csr, values: Tensor, backend: str = "auto") -> Tensor:
    """The sum of each row's entries of ``values``: (R,) from (entries,), (R, F) from (entries, F); float32 or float64.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_entries(csr, values, "values")
    columns = as_columns(values).contiguous()
    kernels = choose(EDGES, backend, values=values, csr=csr.indices)
    out = buffers.empty(csr.num_rows, columns.shape[1], values.dtype, values.device)
    if out.numel():
        kernels.edge_sum(csr, columns, out)
    return out.view(csr.num_rows, *values.shape[1:])


def repeat_rows(csr: Csr, a: Tensor, backend: str = "auto") -> Tensor:
    """Row r of ``a`` (R,) or (R, F) for each entry of row r, (entries,) or (entries, F): the transpose of :func:`edge_sum`."""
    if a.dim() not in (1, 2) or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise WrongValueError(f"a must be float32 or float64 of shape ({csr.num_rows},) or ({csr.num_rows}, F)")
    columns = as_columns(a).contiguous()
    kernels = choose(EDGES, backend, a=a, csr=csr.indices)
    out = buffers.empty(csr.num_entries, columns.shape[1], a.dtype, a.device)
    if out.numel():
        kernels.sddmm(csr, columns, None, "left", 1, out)
    return out.view(csr.num_entries, *a.shape[1:])


def check_heads(op: str, heads: int | None, width: int) -> None:
    """Raise ValueError unless ``heads`` is None, or ``op`` is ``dot`` and ``heads`` divides the ``width`` columns."""
    if heads is not None:
        check_whole("heads", heads, least=1)
    if heads is not None and (op != "dot" or width % heads):
        raise WrongValueError(f"heads must divide the {width} columns, for dot only; not {heads} for {op}")


def _check_sddmm(csr: Csr, a: Tensor, b: Tensor, op: str, heads: int | None) -> None:
    check_choice("op", op, OPERATIONS)
    if a.dim() != 2 or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise WrongValueError(
            f"a must be float32 or float64 of shape ({csr.num_rows}, F), not {a.dtype} {tuple(a.shape)}"
        )
    if b.shape != (csr.num_cols, a.shape[1]) or b.dtype != a.dtype:
        raise WrongValueError(
            f"b must be {a.dtype} of shape ({csr.num_cols}, {a.shape[1]}), not {b.dtype} {tuple(b.shape)}"
        )
    check_heads(op, heads, a.shape[1])


def _check_entries(csr: Csr, values: Tensor, name: str) -> None:
    if values.dim() not in (1, 2) or values.shape[0] != csr.num_entries or values.dtype not in _TYPES:
        found = f"{values.dtype} {tuple(values.shape)}"
        shape = f"({csr.num_entries},) or ({csr.num_entries}, F)"
        raise WrongValueError(f"{name} must be float32 or float64 of shape {shape}, not {found}")
