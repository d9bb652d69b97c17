"""Operators over the entries ("edges") of a sparse matrix.

Shapes: R rows, C columns, F features, H heads. The values of the matrix (``csr.weight``) are ignored. These functions are not
differentiable; :mod:`hpcgnn.kernels.autograd` wraps them. They raise ValueError, which names the argument, where one is wrong.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_choice, check_whole
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.csr import Csr, as_columns
from hpcgnn.kernels.library import constant, native
from hpcgnn.kernels.spmm import csr_argument

_TYPES = (torch.float32, torch.float64)


class EdgeKernels(Protocol):
    """All tensors of a call are float32, or all float64."""

    def sddmm(self, csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
        """Write a value for each entry (r, c), from row r of ``a`` (R, F) and row c of ``b`` (C, F), to ``out``.

        op: ``dot`` writes the dot products of ``heads`` equal groups of columns, out (E, heads). ``add`` writes the sums of both
        rows, out (E, F). ``left`` copies row r of ``a``, out (E, F); ``b`` is None.
        """
        left = a[csr.entry_rows()]
        if b is None:
            out.copy_(left)
        elif op == "add":
            torch.add(left, b[csr.indices.long()], out=out)
        else:
            products = left * b[csr.indices.long()]
            out.copy_(products.view(csr.num_entries, heads, a.shape[1] // heads).sum(2))

    def edge_softmax(self, csr: Csr, scores: Tensor, out: Tensor) -> None:
        """Write the softmax over each row's entries of ``scores`` (E, H) to ``out`` (E, H)."""
        rows = csr.entry_rows()
        top = scores.new_full((csr.num_rows, scores.shape[1]), -torch.inf)
        top.scatter_reduce_(0, rows[:, None].expand_as(scores), scores, "amax")
        top[top == -torch.inf] = 0
        values = torch.exp(scores - top[rows])
        total = scores.new_zeros(top.shape).index_add_(0, rows, values)
        total[total == 0] = 1
        torch.div(values, total[rows], out=out)

    def edge_softmax_backward(self, csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
        """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (E, H), to ``out``."""
        rows = csr.entry_rows()
        total = alpha.new_zeros(csr.num_rows, alpha.shape[1]).index_add_(0, rows, alpha * gradient)
        torch.mul(alpha, gradient - total[rows], out=out)

    def edge_sum(self, csr: Csr, values: Tensor, out: Tensor) -> None:
        """Write the sum of each row's entries of ``values`` (E, F) to ``out`` (R, F)."""
        out.zero_().index_add_(0, csr.entry_rows(), values)


class _Native(EdgeKernels):
    def sddmm(self, csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
        operation, width = constant(f"HPCGNN_{op.upper()}"), a.shape[1]
        native("sddmm", a.dtype, csr=csr_argument(csr), a=a, b=b, width=width, op=operation, heads=heads, out=out)

    def edge_softmax(self, csr: Csr, scores: Tensor, out: Tensor) -> None:
        native("edge_softmax", scores.dtype, csr=csr_argument(csr), scores=scores, width=scores.shape[1], out=out)

    def edge_softmax_backward(self, csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
        given = {"csr": csr_argument(csr), "alpha": alpha, "gradient": gradient, "width": alpha.shape[1], "out": out}
        native("edge_softmax_backward", alpha.dtype, **given)

    def edge_sum(self, csr: Csr, values: Tensor, out: Tensor) -> None:
        native("edge_sum", values.dtype, csr=csr_argument(csr), values=values, width=values.shape[1], out=out)


EDGES: Operator[EdgeKernels] = Operator("edges", EdgeKernels, _Native())


def sddmm(csr: Csr, a: Tensor, b: Tensor, op: str = "dot", heads: int | None = None, backend: str = "auto") -> Tensor:
    """A value for each entry (r, c) from the rows ``a[r]`` and ``b[c]``, see :func:`hpcgnn.kernels.autograd.sddmm`."""
    check_choice("op", op, ("dot", "add"))
    if a.dim() != 2 or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise misfit("a", a, f"float32 or float64 of shape ({csr.num_rows}, F)")
    if b.shape != (csr.num_cols, a.shape[1]) or b.dtype != a.dtype:
        raise misfit("b", b, f"{a.dtype} of shape ({csr.num_cols}, {a.shape[1]})")
    if heads is not None:
        check_heads(op, heads, a.shape[1])
    width = a.shape[1] if op == "add" else heads or 1
    kernels = choose(EDGES, backend, a=a, b=b, csr=csr.indices)
    out = buffers.empty(csr.num_entries, width, a.dtype, a.device)
    if out.numel():
        kernels.sddmm(csr, a.contiguous(), b.contiguous(), op, heads or 1, out)
    return out[:, 0] if op == "dot" and heads is None else out


def edge_softmax(csr: Csr, scores: Tensor, backend: str = "auto") -> Tensor:
    """``scores`` (entries,) or (entries, H) with a softmax over each row, see :func:`hpcgnn.kernels.autograd.edge_softmax`."""
    _check_entries(csr, scores, "scores")
    return _run("edge_softmax", csr, csr.num_entries, backend, scores=scores)


def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, backend: str = "auto") -> Tensor:
    """The gradient of the scores, from the softmax ``alpha`` and its ``gradient``; all (entries,) or (entries, H)."""
    _check_entries(csr, alpha, "alpha")
    if gradient.shape != alpha.shape or gradient.dtype != alpha.dtype:
        raise misfit("gradient", gradient, f"{alpha.dtype} of shape {tuple(alpha.shape)}")
    return _run("edge_softmax_backward", csr, csr.num_entries, backend, alpha=alpha, gradient=gradient)


def edge_sum(csr: Csr, values: Tensor, backend: str = "auto") -> Tensor:
    """The sum of each row's entries of ``values``: (R,) from (entries,), (R, F) from (entries, F); float32 or float64."""
    _check_entries(csr, values, "values")
    return _run("edge_sum", csr, csr.num_rows, backend, values=values)


def _run(name: str, csr: Csr, rows: int, backend: str, **values: Tensor) -> Tensor:
    """The result, (rows,) or (rows, H), of a kernel that takes ``values`` of entries, (entries,) or (entries, H)."""
    first, *_ = values.values()
    columns = [as_columns(each).contiguous() for each in values.values()]
    kernels = choose(EDGES, backend, **values, csr=csr.indices)
    out = buffers.empty(rows, columns[0].shape[1], first.dtype, first.device)
    if out.numel():
        getattr(kernels, name)(csr, *columns, out)
    return out.view(rows, *first.shape[1:])


def repeat_rows(csr: Csr, a: Tensor, backend: str = "auto") -> Tensor:
    """Row r of ``a`` (R,) or (R, F) for each entry of row r, (entries,) or (entries, F): the transpose of :func:`edge_sum`."""
    if a.dim() not in (1, 2) or a.shape[0] != csr.num_rows or a.dtype not in _TYPES:
        raise misfit("a", a, f"float32 or float64 of shape ({csr.num_rows},) or ({csr.num_rows}, F)")
    columns = as_columns(a).contiguous()
    kernels = choose(EDGES, backend, a=a, csr=csr.indices)
    out = buffers.empty(csr.num_entries, columns.shape[1], a.dtype, a.device)
    if out.numel():
        kernels.sddmm(csr, columns, None, "left", 1, out)
    return out.view(csr.num_entries, *a.shape[1:])


def check_heads(op: str, heads: int, width: int) -> None:
    """Raise ValueError unless ``op`` is ``dot`` and ``heads`` divides the ``width`` columns."""
    check_whole("heads", heads, least=1)
    if op != "dot" or width % heads:
        raise WrongValueError(f"heads must divide the {width} columns, for dot only; not {heads} for {op}")


def _check_entries(csr: Csr, values: Tensor, name: str) -> None:
    if values.dim() not in (1, 2) or values.shape[0] != csr.num_entries or values.dtype not in _TYPES:
        raise misfit(name, values, f"float32 or float64 of shape ({csr.num_entries},) or ({csr.num_entries}, F)")
