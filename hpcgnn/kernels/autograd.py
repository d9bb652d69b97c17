"""The kernels with gradients: the functions that :mod:`hpcgnn.kernels` exports.

Each function calls the plain kernel directly if no gradient is needed. Backward passes use the same kernels on the transposed
matrix. ``spmm`` has gradients of gradients; torch refuses those of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_tensors, check_type, check_whole
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import dense as plain_dense
from hpcgnn.kernels import edges as plain_edges
from hpcgnn.kernels import rows as plain_rows
from hpcgnn.kernels.activation import activation_kernels, check_activation
from hpcgnn.kernels.autograd_functions import (
    EdgeSoftmax,
    EdgeSum,
    GatherRows,
    ScatterRows,
    Sddmm,
    Spmm,
    run_activation,
    run_dense,
    tracked,
)
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import DENSE
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.spmm import spmm as plain_spmm

_DIFFERENTIABLE = (torch.float32, torch.float64)


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
    """Multiply a sparse matrix by a dense one: row r of the result is the sum of ``weight[e] * x[indices[e]]`` over the entries
    e of row r.

    Differentiable in ``x`` and ``weight``. Where a gradient is needed, ``x`` must be float32 or float64, and ``out`` and
    ``scale`` must be None. Without ``weight``, ``csr.weight`` is used as a constant. Not collective.

    Args:
        csr: (R, C) sparse matrix.
        x: (C, F) float32, float64, bfloat16 or int8. The last two are added in float32.
        weight: (entries,), or (entries, H) for H equal groups of columns, of the result's type. None takes ``csr.weight``,
            and ones if that is None.
        reduce: ``sum``, or ``mean``, the sum divided by the number of the row's entries. Rows without entries give 0.
        out: (R, F) tensor of the result's type to which the result is added; None makes a new one.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.
        scale: (C,) float32, required for int8 ``x``: row c stands for ``scale[c] * x[c]``.
        accumulate: False overwrites ``out`` instead of adding to it.

    Returns:
        (R, F) float64 for float64 ``x``, else float32.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_type("csr", csr, Csr)
    check_given(x=x)
    check_tensors(weight=weight, out=out, scale=scale)
    check_type("accumulate", accumulate, bool)
    weight = None if weight is None else weight.contiguous()
    stored = csr.weight if weight is None else None
    if not tracked(x, weight, stored, out, scale):
        return plain_spmm(csr, x, weight, reduce, out, backend, scale=scale, accumulate=accumulate)
    if tracked(stored):
        raise WrongValueError("csr.weight is a constant: pass the weight that needs a gradient as weight")
    for name, value in (("out", out), ("scale", scale)):
        if value is not None:
            raise WrongValueError(f"{name} must not be given where a gradient is needed")
    _check_differentiable("x", x)
    return Spmm.apply(x, weight, csr, reduce, backend)


def gather_rows(x: Tensor, index: Tensor, backend: str = "auto") -> Tensor:
    """Take rows by number: ``x[index]``. Differentiable in ``x`` if that is float32 or float64. Not collective.

    Args:
        x: (n, ...) of any type.
        index: (m,) int32 or int64 numbers of rows, in [0, n).
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        (m, ...) of the type of ``x``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_given(x=x, index=index)
    if not tracked(x):
        return plain_rows.gather_rows(x, index, backend)
    _check_differentiable("x", x)
    return GatherRows.apply(x, index, backend)


def scatter_rows(index: Tensor, src: Tensor, num_rows: int, backend: str = "auto") -> Tensor:
    """Put rows at given places: row ``index[k]`` of the result is row k of ``src``, and other rows are 0. Differentiable in
    ``src``. Not collective.

    Args:
        index: (m,) int32 or int64, each number in [0, num_rows) at most once.
        src: (m, ...) of any type.
        num_rows: number of rows of the result.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        (num_rows, ...) of the type of ``src``.

    Raises:
        ValueError: naming the argument that is wrong; also if ``index`` names a row twice.
    """
    check_given(index=index, src=src)
    check_whole("num_rows", num_rows)
    if not tracked(src):
        return plain_rows.scatter_rows(index, src, num_rows, backend)
    return ScatterRows.apply(src, index, num_rows, backend)


def sddmm(csr: Csr, a: Tensor, b: Tensor, op: str = "dot", heads: int | None = None, backend: str = "auto") -> Tensor:
    """Compute a value for each entry (r, c) of a sparse matrix from the rows ``a[r]`` and ``b[c]``. Differentiable in both. Not
    collective.

    Args:
        csr: (R, C) sparse matrix, of which only the structure is used.
        a: (R, F) float32 or float64.
        b: (C, F) of the same type.
        op: ``dot``, the dot product of the two rows, or ``add``, their sum.
        heads: for ``dot``, the number of equal groups of columns with a product each; None: one product.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        (entries,) for ``dot``, or (entries, heads) if ``heads`` is given; (entries, F) for ``add``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_type("csr", csr, Csr)
    check_given(a=a, b=b)
    if not tracked(a, b):
        return plain_edges.sddmm(csr, a, b, op, heads, backend)
    return Sddmm.apply(a, b, csr, op, heads, backend)


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    plus: Tensor | None = None,
    backend: str = "auto",
    compute: str = "float32",
) -> Tensor:
    """Compute ``x @ weight + bias + plus`` in one pass. Differentiable in all four. Not collective.

    Args:
        x: (n, F) float32 or float64.
        weight: (F, H) of the type of ``x``; may be a transposed view.
        bias: (H,) of the type of ``x``, or None.
        plus: (n, H) of the type of ``x``, or None. Its memory may become that of the result, so do not use its values
            afterwards. If an earlier operation has saved ``plus`` for its backward pass, torch raises an error there.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.
        compute: ``float32``, the type of ``x``; ``bf16`` or ``tf32``, which round ``x`` and ``weight`` and add in float32,
            where the backend and the device support them.

    Returns:
        (n, H) of the type of ``x``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_given(x=x, weight=weight)
    check_tensors(bias=bias, plus=plus)
    shape = (*x.shape[:1], *weight.shape[1:])
    if plus is not None and (plus.shape != shape or plus.dtype != x.dtype):
        raise WrongValueError(f"plus must be {x.dtype} of shape {shape}, not {plus.dtype} of {tuple(plus.shape)}")
    kernels = plain_dense.checked_kernels(x, weight, bias, None, backend, compute)
    choose(DENSE, backend, x=x, plus=plus)  # raises where they are on two devices
    return run_dense(kernels, x, weight, bias, plus, compute)


def edge_softmax(csr: Csr, scores: Tensor, backend: str = "auto") -> Tensor:
    """Compute the softmax of values of entries over each row of a sparse matrix. Differentiable in ``scores``. Not collective.

    A score of -inf gives 0, and a row that has no other scores gives zeros. A NaN, or +inf, makes its row NaN. In float32,
    scores that are more than 87 below the largest of their row give 0.

    Args:
        csr: (R, C) sparse matrix, of which only the structure is used.
        scores: (entries,) or (entries, H), float32 or float64.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        A tensor of the shape and type of ``scores``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_type("csr", csr, Csr)
    check_given(scores=scores)
    if not tracked(scores):
        return plain_edges.edge_softmax(csr, scores, backend)
    return EdgeSoftmax.apply(scores, csr, backend)


def edge_sum(csr: Csr, values: Tensor, backend: str = "auto") -> Tensor:
    """Add up the values of each row's entries. Differentiable in ``values``. Not collective.

    Args:
        csr: (R, C) sparse matrix, of which only the structure is used.
        values: (entries,) or (entries, F), float32 or float64.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        (R,) or (R, F) of the type of ``values``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_type("csr", csr, Csr)
    check_given(values=values)
    if not tracked(values):
        return plain_edges.edge_sum(csr, values, backend)
    return EdgeSum.apply(values, csr, backend)


def activation(x: Tensor, norm: Norm | None = None, mask: DropoutMask | None = None, backend: str = "auto") -> Tensor:
    """Compute ``dropout(relu(norm(x)))`` in one pass. Differentiable in ``x`` and in the norm's weight and bias. Not collective.

    Args:
        x: (n, F) float32 or float64. It is kept for the backward pass.
        norm: layer norm, a ``hpcgnn.kernels.Norm``; None leaves it out.
        mask: dropout mask, a ``hpcgnn.kernels.DropoutMask``; None leaves dropout out.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.

    Returns:
        (n, F) of the type of ``x``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_given(x=x)
    check_type("norm", norm, Norm, type(None))
    check_type("mask", mask, DropoutMask, type(None))
    if norm is not None:
        check_given(weight=norm.weight, bias=norm.bias)
    check_activation(x, norm, mask)
    return run_activation(activation_kernels(x, norm, mask, backend), x, norm, mask)


def _check_differentiable(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DIFFERENTIABLE:
        raise WrongValueError(f"{name} must be float32 or float64 where a gradient is needed, not {tensor.dtype}")
