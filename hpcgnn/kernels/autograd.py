"""The kernels with gradients: the functions that :mod:`hpcgnn.kernels` exports, and the backward pass of each operator.

Each function calls the plain kernel directly if no gradient is needed. Backward passes use the same kernels on the transposed
matrix. ``spmm`` has gradients of gradients; torch refuses those of the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import function as torchs_function

from hpcgnn.base.arguments import check_given, check_number, check_tensors, check_type, check_whole
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import dense as plain_dense
from hpcgnn.kernels import edges as plain_edges
from hpcgnn.kernels import rows as plain_rows
from hpcgnn.kernels.activation import (
    ActivationKernels,
    DropoutMask,
    Norm,
    activate,
    activate_backward,
    activation_kernels,
    check_activation,
)  # fmt: skip
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dense import DENSE, DenseKernels
from hpcgnn.kernels.spmm import add_rows
from hpcgnn.kernels.spmm import spmm as plain_spmm

_FLOATS = (torch.float32, torch.float64)
Run = Callable[..., Tensor]
Kept = Sequence[Tensor]


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
    return _Spmm.apply(x, weight, csr, reduce, backend)


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
    shape = x.shape

    def back(dz: Tensor, index: Tensor) -> Tensor:  # the gradients of all copies of a row are added
        rows = dz.reshape(index.numel(), shape[1:].numel())
        return add_rows(index, rows, shape[0], backend).view(shape)

    return _Linear.apply(x, lambda x, index: plain_rows.gather_rows(x, index, backend), back, index)


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
    return _Linear.apply(
        src,
        lambda src, index: plain_rows.scatter_rows(index, src, num_rows, backend),
        lambda dz, index: plain_rows.gather_rows(dz, index, backend, check=False),
        index,
    )


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
    return _Sddmm.apply(a, b, csr, op, heads, backend)


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
    return run_dense(_Products(kernels, compute), x, weight, bias, plus)


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
    return _EdgeSoftmax.apply(scores, csr, backend)


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
    return _Linear.apply(
        values,
        lambda values: plain_edges.edge_sum(csr, values, backend),
        lambda gradient: plain_edges.repeat_rows(csr, gradient, backend),
    )


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
    return _run_activation(activation_kernels(x, norm, mask, backend), x, norm, mask)


def attention_weights(csr: Csr, a: Tensor, b: Tensor, slope: float, backend: str = "auto") -> Tensor:
    """``edge_softmax(csr, leaky_relu(sddmm(csr, a, b, "add"), slope))``, differentiable in ``a`` (R, H) and ``b`` (C, H).

    Only the (entries, H) result is kept for backward, which computes the scores again. slope: positive slope of the leaky ReLU
    for negative scores.
    """
    check_type("csr", csr, Csr)
    check_given(a=a, b=b)
    check_number("slope", slope)
    return _AttentionWeights.apply(a, b, csr, float(slope), backend)


def layer_product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, plus: Tensor | None = None, backend: str = "auto",
    compute: str = "float32",
) -> Tensor:  # fmt: skip
    """:func:`hpcgnn.kernels.dense_product` for layers, whose arguments fit but for an input of the wrong type or width."""
    fits = x.dtype is weight.dtype and x.shape[1:] == weight.shape[:1] and x.is_cpu is weight.is_cpu
    fits = fits and (bias is None or (bias.dtype is x.dtype and bias.shape == weight.shape[1:]))
    if type(x) is not Tensor or x.dtype not in _FLOATS or x.is_neg() or not fits:
        check_given(x=x, weight=weight)
        plain_dense.checked_kernels(x, weight, bias, None, backend, compute)
    return run_dense(_Products(plain_dense.kernels_for(x, backend), compute), x, weight, bias, plus)


def layer_activation(
    x: Tensor, norm: Norm | None = None, mask: DropoutMask | None = None, backend: str = "auto"
) -> Tensor:
    """:func:`hpcgnn.kernels.activation` for layers, whose arguments fit but for an input of the wrong type or shape."""
    fits = norm is None or (
        norm.weight is not None
        and norm.bias is not None
        and norm.weight.dtype is norm.bias.dtype is x.dtype
        and norm.weight.shape == norm.bias.shape == x.shape[1:]
    )
    fits = fits and (mask is None or mask.ids.shape == x.shape[:1])
    if x.dim() != 2 or x.dtype not in _FLOATS or x.is_neg() or not fits:
        check_given(x=x)
        if norm is not None:
            check_given(weight=norm.weight, bias=norm.bias)
        check_activation(x, norm, mask)
    return _run_activation(activation_kernels(x, norm, None, backend), x, norm, mask)


def _check_differentiable(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOATS:
        raise WrongValueError(f"{name} must be float32 or float64 where a gradient is needed, not {tensor.dtype}")


# -- backward passes ---------------------------------------------------------------------------------------------------


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decorator of backward functions, which is passed by where gradients are not recorded: it changes nothing there."""
    refusing = torchs_function.once_differentiable(backward)

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor) -> Any:
        return (refusing if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return run


def tracked(*tensors: Tensor | None) -> bool:
    """Return whether autograd records operations on these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def transposed_with(csr: Csr, weight: Tensor | None, backend: str) -> tuple[Csr, Tensor | None]:
    """The transpose of ``csr``, and the weights of its entries: ``weight`` in the transpose's order if given, else the stored
    ones."""
    if weight is None:
        transpose = csr.transpose()
        return transpose, transpose.weight
    return csr.structure.transpose(), _to_transpose(csr, weight, backend)


def _to_transpose(csr: Csr, values: Tensor, backend: str) -> Tensor:
    """``values`` (entries, ...) in the order of the transpose's entries."""
    return plain_rows.gather_rows(values, csr.transpose_order, backend, check=False)


def _end_sums(csr: Csr, values: Tensor, wanted: Sequence[bool], backend: str) -> tuple[Tensor | None, Tensor | None]:
    """The sums of ``values`` (entries, H) over each row of ``csr``, (R, H), and over each column, (C, H); None where not
    wanted."""
    of_rows = plain_edges.edge_sum(csr, values, backend) if wanted[0] else None
    if not wanted[1]:
        return of_rows, None
    return of_rows, plain_edges.edge_sum(csr.structure.transpose(), _to_transpose(csr, values, backend), backend)


class _Spmm(torch.autograd.Function):
    """``z = A x``; ``dx = Aᵀ dz``, and the gradient of a weight is the product of its edge's two rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, csr: Csr, reduce: str, backend: str) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.csr, ctx.reduce, ctx.backend = csr, reduce, backend
        return plain_spmm(csr, x, weight, reduce, backend=backend)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        csr, dz = ctx.csr, dz.contiguous()
        if ctx.reduce == "mean":
            dz = dz / csr.row_lengths().clamp(min=1).to(dz.dtype)[:, None]
        if torch.is_grad_enabled():  # create_graph=True
            return *_differentiable_gradients(csr, x, weight, dz, ctx.needs_input_grad), None, None, None
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            transpose, transposed = transposed_with(csr, weight, ctx.backend)
            dx = plain_spmm(transpose, dz, transposed, backend=ctx.backend)
        if ctx.needs_input_grad[1]:
            heads = None if weight.dim() == 1 else weight.shape[1]
            dweight = plain_edges.sddmm(csr, dz, x, "dot", heads, ctx.backend)
        return dx, dweight, None, None, None


def _differentiable_gradients(
    csr: Csr, x: Tensor | None, weight: Tensor | None, dz: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a sum by torch's own functions, which can be differentiated again; with a row for each entry."""
    dx = dweight = None
    dz, columns = dz[csr.entry_rows()], csr.indices.long()
    values = csr.weight if weight is None else weight
    heads = 1 if values is None or values.dim() == 1 else values.shape[1]
    in_heads = len(dz), heads, dz.shape[1] // heads
    if wanted[0]:
        rows = dz if values is None else (dz.view(in_heads) * values.view(len(dz), heads, 1)).view(dz.shape)
        dx = dz.new_zeros(csr.num_cols, dz.shape[1]).index_add(0, columns, rows)
    if wanted[1]:
        assert x is not None
        assert weight is not None
        dweight = (dz * x[columns]).view(in_heads).sum(2).view(weight.shape)
    return dx, dweight


class _Linear(torch.autograd.Function):
    """A linear operator ``run``: its transpose ``back`` is applied to the gradient. Both also take the tensors ``kept``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Run, back: Run, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.back = back
        return run(x, *kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        return ctx.back(gradient, *kept), *(None for _ in range(2 + len(kept)))


class _Sddmm(torch.autograd.Function):
    """A value for each entry of ``csr`` from the rows of its two ends; gradients are sums over rows and columns."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, csr: Csr, op: str, heads: int | None, backend: str) -> Tensor:
        if op == "dot":
            ctx.save_for_backward(a, b)
        ctx.csr, ctx.op, ctx.backend = csr, op, backend
        return plain_edges.sddmm(csr, a, b, op, heads, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        csr, backend, gradient = ctx.csr, ctx.backend, gradient.contiguous()
        da = db = None
        if ctx.op == "dot":
            a, b = ctx.saved_tensors
            if ctx.needs_input_grad[0]:
                da = plain_spmm(csr, b, gradient, backend=backend)
            if ctx.needs_input_grad[1]:
                transpose, weight = transposed_with(csr, gradient, backend)
                db = plain_spmm(transpose, a, weight, backend=backend)
        else:
            da, db = _end_sums(csr, gradient, ctx.needs_input_grad[:2], backend)
        return da, db, None, None, None, None


class Products(Protocol):
    """The products of a dense operator: by the kernels of a backend, or of 8-bit integers."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> tuple[Tensor, Kept]:
        """``out + x @ weight + bias``, and what :meth:`weight_gradient` needs of ``x``."""
        ...

    def weight_gradient(self, kept: Kept, dy: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        """``x.T @ dy``, and with ``sums`` the sums of the columns of ``dy``."""
        ...


class _Products(NamedTuple):
    kernels: DenseKernels
    compute: str

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> tuple[Tensor, Kept]:
        return plain_dense.run_product(self.kernels, x, weight, bias, out, self.compute), (x,)

    def weight_gradient(self, kept: Kept, dy: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        return plain_dense.run_weight_gradient(self.kernels, kept[0], dy, sums, self.compute)


def run_dense(products: Products, x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None) -> Tensor:
    """``x @ weight + bias + plus``, recorded by autograd where a gradient is needed."""
    if not tracked(x, weight, bias, plus):
        return products.product(x, weight, bias, _reused(plus, x.dtype))[0]
    return _Dense.apply(x, weight, bias, plus, products)


class _Dense(torch.autograd.Function):
    """``y = x W + b + p``: ``dx = dy Wᵀ``, ``dW = xᵀ dy``, ``db`` sums the rows of ``dy``, ``dp = dy``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None, products: Products
    ) -> Tensor:
        y, kept = products.product(x, weight, bias, _reused(plus, x.dtype))
        ctx.save_for_backward(*kept, weight)
        ctx.products = products
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *kept, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_plus, _ = ctx.needs_input_grad
        dy = dy.contiguous()
        dx = ctx.products.product(dy, weight.T, None, None)[0] if needs_x else None
        dweight = dbias = None
        if needs_weight:
            dweight, dbias = ctx.products.weight_gradient(kept, dy, needs_bias)
        elif needs_bias:
            dbias = dy.sum(0)
        return dx, dweight, dbias, dy if needs_plus else None, None


def _reused(plus: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A writable tensor over the memory of ``plus``; a copy if ``plus`` is a leaf that needs a gradient, or not contiguous."""
    if plus is None or plus.dtype != dtype:
        return plus
    if not plus.is_contiguous() or (plus.is_leaf and plus.requires_grad):
        return plus.detach().clone(memory_format=torch.contiguous_format)
    torch.autograd.graph.increment_version(plus)
    return plus.detach()


class _EdgeSoftmax(torch.autograd.Function):
    """Softmax over the entries of each row, for each head; the result is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, csr: Csr, backend: str) -> Tensor:
        alpha = plain_edges.edge_softmax(csr, scores, backend)
        ctx.save_for_backward(alpha)
        ctx.csr, ctx.backend = csr, backend
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (alpha,) = ctx.saved_tensors
        return plain_edges.edge_softmax_backward(ctx.csr, alpha, gradient, ctx.backend), None, None


def _run_activation(kernels: ActivationKernels, x: Tensor, norm: Norm | None, mask: DropoutMask | None) -> Tensor:
    """``dropout(relu(norm(x)))`` by ``kernels``, recorded by autograd where a gradient is needed."""
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    if not tracked(x, weight, bias):
        return activate(kernels, x, norm, mask)[0]
    return _Activation.apply(x, weight, bias, eps, mask, kernels)


class _Activation(torch.autograd.Function):
    """``dropout(relu(norm(x)))``; backward computes the masks of ReLU and dropout again, so that none is kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, mask: DropoutMask | None,
        kernels: ActivationKernels,
    ) -> Tensor:  # fmt: skip
        y, kept = activate(kernels, x, _norm(weight, bias, eps), mask)
        ctx.save_for_backward(x, weight, bias, kept)
        ctx.eps, ctx.mask, ctx.kernels = eps, mask, kernels
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, kept = ctx.saved_tensors
        gradients = activate_backward(ctx.kernels, dy, x, kept, _norm(weight, bias, ctx.eps), ctx.mask)
        return (*gradients, None, None, None)


def _norm(weight: Tensor | None, bias: Tensor | None, eps: float) -> Norm | None:
    return None if weight is None or bias is None else Norm(weight, bias, eps)


class _AttentionWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, csr: Csr, slope: float, backend: str) -> Tensor:
        scores = F.leaky_relu(plain_edges.sddmm(csr, a, b, "add", backend=backend), slope, inplace=True)
        alpha = plain_edges.edge_softmax(csr, scores, backend)
        ctx.save_for_backward(a, b, alpha)
        ctx.csr, ctx.slope, ctx.backend = csr, slope, backend
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b, alpha = ctx.saved_tensors
        csr, slope, backend = ctx.csr, ctx.slope, ctx.backend
        of_scores = plain_edges.edge_softmax_backward(csr, alpha, gradient.contiguous(), backend)
        slopes = plain_edges.sddmm(csr, a, b, "add", backend=backend).gt_(0).mul_(1 - slope).add_(slope)
        return *_end_sums(csr, of_scores.mul_(slopes), ctx.needs_input_grad[:2], backend), None, None, None
