"""Operators of autograd behind :mod:`hpcgnn.kernels.autograd`: each has a forward and a backward pass by plain kernels.

The backward pass of a sum over a matrix is the same kernel on its transpose. Arguments were checked by the callers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function as torchs_function

from hpcgnn.base.arguments import check_given
from hpcgnn.kernels import dense as plain_dense
from hpcgnn.kernels import edges as plain_edges
from hpcgnn.kernels import rows as plain_rows
from hpcgnn.kernels.activation import activate, activate_backward, activation_kernels, check_activation
from hpcgnn.kernels.contract import ActivationKernels, DenseKernels
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.spmm import add_rows
from hpcgnn.kernels.spmm import spmm as plain_spmm

_FLOATS = (torch.float32, torch.float64)


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


def end_sums(csr: Csr, values: Tensor, wanted: Sequence[bool], backend: str) -> tuple[Tensor | None, Tensor | None]:
    """The sums of ``values`` (entries, H) over each row of ``csr``, (R, H), and over each column, (C, H); None where not
    wanted."""
    of_rows = plain_edges.edge_sum(csr, values, backend) if wanted[0] else None
    if not wanted[1]:
        return of_rows, None
    return of_rows, plain_edges.edge_sum(csr.structure.transpose(), _to_transpose(csr, values, backend), backend)


class Spmm(torch.autograd.Function):
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


class ScatterRows(torch.autograd.Function):
    """``z[index] = src``; the gradient of row k of ``src`` is row ``index[k]`` of ``dz``."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, index: Tensor, num_rows: int, backend: str) -> Tensor:
        ctx.save_for_backward(index)
        ctx.backend = backend
        return plain_rows.scatter_rows(index, src, num_rows, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return plain_rows.gather_rows(dz, index, ctx.backend, check=False), None, None, None


class GatherRows(torch.autograd.Function):
    """Rows of ``x`` by ``index``; the gradients of all copies of a row are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, backend: str) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape, ctx.backend = x.shape, backend
        return plain_rows.gather_rows(x, index, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        rows = dz.reshape(index.numel(), ctx.shape[1:].numel())
        dx = add_rows(index, rows, ctx.shape[0], ctx.backend)
        return dx.view(ctx.shape), None, None


class Sddmm(torch.autograd.Function):
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
            da, db = end_sums(csr, gradient, ctx.needs_input_grad[:2], backend)
        return da, db, None, None, None, None


def layer_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    plus: Tensor | None = None,
    backend: str = "auto",
    compute: str = "float32",
) -> Tensor:
    """:func:`hpcgnn.kernels.dense_product` for layers, whose arguments fit but for an input of the wrong type or width."""
    fits = x.dtype is weight.dtype and x.shape[1:] == weight.shape[:1] and x.is_cpu is weight.is_cpu
    fits = fits and (bias is None or (bias.dtype is x.dtype and bias.shape == weight.shape[1:]))
    if type(x) is not Tensor or x.dtype not in _FLOATS or x.is_neg() or not fits:
        check_given(x=x, weight=weight)
        plain_dense.checked_kernels(x, weight, bias, None, backend, compute)
    return run_dense(plain_dense.kernels_for(x, backend), x, weight, bias, plus, compute)


def run_dense(
    kernels: DenseKernels, x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None, compute: str
) -> Tensor:
    """``x @ weight + bias + plus`` by ``kernels``, recorded by autograd where a gradient is needed."""
    if not tracked(x, weight, bias, plus):
        return plain_dense.run_product(kernels, x, weight, bias, reused(plus, x.dtype), compute)
    return Dense.apply(x, weight, bias, plus, kernels, compute)


class Dense(torch.autograd.Function):
    """``y = x W + b + p``: ``dx = dy Wᵀ``, ``dW = xᵀ dy``, ``db`` sums the rows of ``dy``, ``dp = dy``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plus: Tensor | None,
        kernels: DenseKernels,
        compute: str,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kernels, ctx.compute = kernels, compute
        return plain_dense.run_product(kernels, x, weight, bias, reused(plus, x.dtype), compute)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_plus, *_ = ctx.needs_input_grad
        dy = dy.contiguous()
        dx = plain_dense.run_product(ctx.kernels, dy, weight.T, compute=ctx.compute) if needs_x else None
        dweight = dbias = None
        if needs_weight:
            dweight, dbias = plain_dense.run_weight_gradient(ctx.kernels, x, dy, needs_bias, ctx.compute)
        elif needs_bias:
            dbias = dy.sum(0)
        return dx, dweight, dbias, dy if needs_plus else None, None, None


def reused(plus: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A writable tensor over the memory of ``plus``; a copy if ``plus`` is a leaf that needs a gradient, or not contiguous."""
    if plus is None or plus.dtype != dtype:
        return plus
    if not plus.is_contiguous() or (plus.is_leaf and plus.requires_grad):
        return plus.detach().clone(memory_format=torch.contiguous_format)
    torch.autograd.graph.increment_version(plus)
    return plus.detach()


class EdgeSoftmax(torch.autograd.Function):
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


class EdgeSum(torch.autograd.Function):
    """The sum over the entries of each row; the gradient of a row goes to all its entries."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, csr: Csr, backend: str) -> Tensor:
        ctx.csr, ctx.backend = csr, backend
        return plain_edges.edge_sum(csr, values, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return plain_edges.repeat_rows(ctx.csr, gradient, ctx.backend), None, None


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
    return run_activation(activation_kernels(x, norm, None, backend), x, norm, mask)


def run_activation(kernels: ActivationKernels, x: Tensor, norm: Norm | None, mask: DropoutMask | None) -> Tensor:
    """``dropout(relu(norm(x)))`` by ``kernels``, recorded by autograd where a gradient is needed."""
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    if not tracked(x, weight, bias):
        return activate(kernels, x, norm, mask)[0]
    return Activation.apply(x, weight, bias, eps, mask, kernels)


class Activation(torch.autograd.Function):
    """``dropout(relu(norm(x)))``; backward computes the masks of ReLU and dropout again, so that none is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        mask: DropoutMask | None,
        kernels: ActivationKernels,
    ) -> Tensor:
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
