"""What runs over the entries ("edges") of a sparse matrix: one entry to every backend.

Shapes: R rows, C columns, F features, H heads. Values of the matrix (``csr.weight``) take no part. These functions are
not differentiable; :mod:`hpcgnn.kernels.autograd` wraps them.
"""

from __future__ import annotations

import torch

from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import implementation
from hpcgnn.kernels.csr import Csr, as_columns

OPERATIONS = ("dot", "add")
_TYPES = (torch.float32, torch.float64)


def sddmm(
    csr: Csr, a: torch.Tensor, b: torch.Tensor, op: str = "dot", heads: int | None = None, backend: str = "auto"
) -> torch.Tensor:
    """A value for each entry from the two rows that it joins: ``a[r]`` and ``b[c]`` for an entry in row r, column c.

    Args:
        csr: (R, C) sparse matrix.
        a: (R, F) float32 or float64.
        b: (C, F) of the same dtype.
        op: ``dot``, the product of the two, or ``add``, their sum.
        heads: for ``dot``: F falls into this many equal groups of columns, with a product each.
        backend: ``auto``, ``native``, ``jit`` or ``reference``.

    Returns:
        ``dot``: (entries,), or (entries, heads) if ``heads`` is given; ``add``: (entries, F).

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_sddmm(csr, a, b, op, heads)
    width = a.shape[1] if op == "add" else heads or 1
    out = buffers.empty(csr.num_entries, width, a.dtype)
    if out.numel():
        implementation("edges", backend).sddmm(csr, a.contiguous(), b.contiguous(), op, heads or 1, out)
    return out[:, 0] if op == "dot" and heads is None else out


def edge_softmax(csr: Csr, scores: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """``scores`` (entries,) or (entries, H), float32 or float64, with a softmax over the entries of each row.

    A score of -inf gives 0, and a row of nothing else gives zeros; a NaN, or +inf, makes its row NaN. In float32, scores
    more than 87 below the row's largest give 0.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_entries(csr, scores, "scores")
    columns = as_columns(scores).contiguous()
    out = buffers.empty(csr.num_entries, columns.shape[1], scores.dtype)
    if out.numel():
        implementation("edges", backend).edge_softmax(csr, columns, out)
    return out.view(scores.shape)


def edge_softmax_backward(csr: Csr, alpha: torch.Tensor, gradient: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """The gradient of the scores, from ``alpha``, the softmax, and its gradient; all (entries,) or (entries, H)."""
    _check_entries(csr, alpha, "alpha")
    if gradient.shape != alpha.shape or gradient.dtype != alpha.dtype:
        raise ValueError(f"gradient must be {alpha.dtype} of shape {tuple(alpha.shape)}")
    alpha_columns, gradient_columns = as_columns(alpha).contiguous(), as_columns(gradient).contiguous()
    out = buffers.empty(csr.num_entries, alpha_columns.shape[1], alpha.dtype)
    if out.numel():
        implementation("edges", backend).edge_softmax_backward(csr, alpha_columns, gradient_columns, out)
    return out.view(alpha.shape)


def edge_sum(csr: Csr, values: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """The sum of each row's entries of ``values``: (R,) from (entries,), (R, F) from (entries, F); float32 or float64.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_entries(csr, values, "values")
    columns = as_columns(values).contiguous()
    out = buffers.empty(csr.num_rows, columns.shape[1], values.dtype)
    if out.numel():
        implementation("edges", backend).edge_sum(csr, columns, out)
    return out.view(csr.num_rows, *values.shape[1:])


def repeat_rows(csr: Csr, a: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """Row r of ``a`` (R,) or (R, F) for each entry of row r: (entries,) or (entries, F). The transpose of edge_sum."""
    if a.dim() not in (1, 2) or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise ValueError(f"a must be float32 or float64 of shape ({csr.num_rows},) or ({csr.num_rows}, F)")
    columns = as_columns(a).contiguous()
    out = buffers.empty(csr.num_entries, columns.shape[1], a.dtype)
    if out.numel():
        implementation("edges", backend).sddmm(csr, columns, None, "left", 1, out)
    return out.view(csr.num_entries, *a.shape[1:])


def max_shares(
    csr: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    gradient: torch.Tensor,
    backend: str = "auto",
) -> torch.Tensor:
    """What each entry that attains the maximum gets of the gradient of ``z = spmm(csr, x, weight, "max")``; (R, F).

    Arguments are right by construction; ``weight`` is (entries, H) or None.
    """
    out = buffers.empty(csr.num_rows, x.shape[1], x.dtype)
    if out.numel():
        implementation("edges", backend).max_shares(csr, weight, x, z, gradient, out)
    return out


def max_backward(
    transpose: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    shares: torch.Tensor,
    backend: str = "auto",
) -> torch.Tensor:
    """The gradient of ``x`` (C, F), from :func:`max_shares`; ``weight`` is in the order of ``transpose``."""
    out = buffers.empty(transpose.num_rows, x.shape[1], x.dtype)
    if out.numel():
        implementation("edges", backend).max_backward(transpose, weight, x, z, shares, out)
    return out


def max_weight_backward(
    csr: Csr, weight: torch.Tensor, x: torch.Tensor, z: torch.Tensor, shares: torch.Tensor, backend: str = "auto"
) -> torch.Tensor:
    """The gradient of ``weight`` (entries, H), from :func:`max_shares`."""
    out = buffers.empty(csr.num_entries, weight.shape[1], x.dtype)
    if out.numel():
        implementation("edges", backend).max_weight_backward(csr, weight, x, z, shares, out)
    return out


def _check_sddmm(csr: Csr, a: torch.Tensor, b: torch.Tensor, op: str, heads: int | None) -> None:
    if op not in OPERATIONS:
        raise ValueError(f"op must be one of {', '.join(OPERATIONS)}, not {op!r}")
    if a.dim() != 2 or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise ValueError(f"a must be float32 or float64 of shape ({csr.num_rows}, F), not {a.dtype} {tuple(a.shape)}")
    if b.shape != (csr.num_cols, a.shape[1]) or b.dtype != a.dtype:
        raise ValueError(f"b must be {a.dtype} of shape ({csr.num_cols}, {a.shape[1]}), not {b.dtype} {tuple(b.shape)}")
    if heads is not None and (op != "dot" or heads < 1 or a.shape[1] % heads):
        raise ValueError(f"heads must divide the {a.shape[1]} columns, for dot only; not {heads} for {op}")


def _check_entries(csr: Csr, values: torch.Tensor, name: str) -> None:
    if values.dim() not in (1, 2) or values.shape[0] != csr.num_entries or values.dtype not in _TYPES:
        found = f"{values.dtype} {tuple(values.shape)}"
        shape = f"({csr.num_entries},) or ({csr.num_entries}, F)"
        raise ValueError(f"{name} must be float32 or float64 of shape {shape}, not {found}")
