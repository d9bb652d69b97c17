"""The kernels with gradients: the functions that :mod:`hpcgnn.kernels` exports.

Each function calls the plain kernel directly if no gradient is needed, else :func:`recorded` with the operator's two passes.
Backward passes use the same kernels on the transposed matrix. ``spmm`` has gradients of gradients; torch refuses those of the
others.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import function as torchs_function

from hpcgnn.base.arguments import check_given, check_number, check_tensors, check_type, check_whole
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import activation as plain_activation
from hpcgnn.kernels import dense as plain_dense
from hpcgnn.kernels import edges as plain_edges
from hpcgnn.kernels import rows as plain_rows
from hpcgnn.kernels.activation import ActivationKernels, DropoutMask, Norm
from hpcgnn.kernels.again import may_be_last
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dense import DenseKernels
from hpcgnn.kernels.spmm import add_rows
from hpcgnn.kernels.spmm import spmm as plain_spmm

_FLOATS = (torch.float32, torch.float64)
Kept = Sequence[Tensor]
Gradients = tuple[Tensor | None, ...]


def spmm(
    csr: Csr, x: Tensor, weight: Tensor | None = None, reduce: str = "sum", out: Tensor | None = None,
    backend: str = "auto", *, scale: Tensor | None = None, accumulate: bool = True,
) -> Tensor:  # fmt: skip
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

    def run(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return plain_rows.gather_rows(x, index, backend)

    def back(ctx: Any, dz: Tensor) -> Gradients:  # the gradients of all copies of a row are added
        (index,) = ctx.saved_tensors
        rows = dz.reshape(index.numel(), shape[1:].numel())
        return (add_rows(index, rows, shape[0], backend).view(shape),)

    return recorded(run, back, x)


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

    def run(ctx: Any, src: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return plain_rows.scatter_rows(index, src, num_rows, backend)

    def back(ctx: Any, dz: Tensor) -> Gradients:
        (index,) = ctx.saved_tensors
        return (plain_rows.gather_rows(dz, index, backend, check=False),)

    return recorded(run, back, src)


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

    def run(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        if op == "dot":
            ctx.save_for_backward(a, b)
        return plain_edges.sddmm(csr, a, b, op, heads, backend)

    def back(ctx: Any, gradient: Tensor) -> Gradients:
        gradient, wanted = gradient.contiguous(), ctx.needs_input_grad[-2:]
        if op == "add":
            return end_sums(csr, gradient, wanted, backend)
        a, b = ctx.saved_tensors
        da = plain_spmm(csr, b, gradient, backend=backend) if wanted[0] else None
        if not wanted[1]:
            return da, None
        transpose, weight = transposed_with(csr, gradient, backend)
        return da, plain_spmm(transpose, a, weight, backend=backend)

    return recorded(run, back, a, b)


def dense(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, plus: Tensor | None = None, backend: str = "auto",
    compute: str = "float32",
) -> Tensor:  # fmt: skip
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
    kernels = plain_dense.checked_kernels(x, weight, bias, plus, backend, compute)
    return _dense(kernels, compute, x, weight, bias, plus)


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

    def run(ctx: Any, scores: Tensor) -> Tensor:
        alpha = plain_edges.edge_softmax(csr, scores, backend)
        ctx.save_for_backward(alpha)
        return alpha

    def back(ctx: Any, gradient: Tensor) -> Gradients:
        (alpha,) = ctx.saved_tensors
        return (plain_edges.edge_softmax_backward(csr, alpha, gradient, backend),)

    return recorded(run, back, scores)


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
    return recorded(
        lambda _, values: plain_edges.edge_sum(csr, values, backend),
        lambda _, gradient: (plain_edges.repeat_rows(csr, gradient, backend),),
        values,
    )


def activation(x: Tensor, norm: Norm | None = None, mask: DropoutMask | None = None, backend: str = "auto") -> Tensor:
    """Compute ``dropout(relu(norm(x)))`` in one pass. Differentiable in ``x`` and in the norm's weight and bias. Not collective.

    Args:
        x: (n, F) float32 or float64. With ``norm`` it is kept for the backward pass, else one bit of each value is.
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
    plain_activation.check_activation(x, norm, mask)
    return _activation(plain_activation.activation_kernels(x, norm, mask, backend), x, norm, mask)


def attention_weights(csr: Csr, a: Tensor, b: Tensor, slope: float, backend: str = "auto") -> Tensor:
    """``edge_softmax(csr, leaky_relu(sddmm(csr, a, b, "add"), slope))``, differentiable in ``a`` (R, H) and ``b`` (C, H).

    Only the (entries, H) result is kept for backward, which computes the scores again. slope: positive slope of the leaky ReLU
    for negative scores.
    """
    check_type("csr", csr, Csr)
    check_given(a=a, b=b)
    check_number("slope", slope)
    slope = float(slope)

    def run(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        scores = F.leaky_relu(plain_edges.sddmm(csr, a, b, "add", backend=backend), slope, inplace=True)
        alpha = plain_edges.edge_softmax(csr, scores, backend)
        ctx.save_for_backward(a, b, alpha)
        return alpha

    def back(ctx: Any, gradient: Tensor) -> Gradients:
        a, b, alpha = ctx.saved_tensors
        of_scores = plain_edges.edge_softmax_backward(csr, alpha, gradient.contiguous(), backend)
        slopes = plain_edges.sddmm(csr, a, b, "add", backend=backend).gt_(0).mul_(1 - slope).add_(slope)
        return end_sums(csr, of_scores.mul_(slopes), ctx.needs_input_grad[-2:], backend)

    return recorded(run, back, a, b)


def layer_product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, plus: Tensor | None = None, backend: str = "auto",
    compute: str = "float32",
) -> Tensor:  # fmt: skip
    """:func:`hpcgnn.kernels.dense_product` for layers, whose arguments fit but for an input of the wrong type or width."""
    fits = x.dtype is weight.dtype and x.shape[1:] == weight.shape[:1] and x.is_cpu is weight.is_cpu
    fits = fits and (bias is None or (bias.dtype is x.dtype and bias.shape == weight.shape[1:]))
    if type(x) is not Tensor or x.dtype not in _FLOATS or x.is_neg() or not fits:
        return dense(x, weight, bias, plus, backend, compute)
    return _dense(plain_dense.kernels_for(x, backend), compute, x, weight, bias, plus)


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
        return activation(x, norm, mask, backend)
    return _activation(plain_activation.activation_kernels(x, norm, None, backend), x, norm, mask)


def _check_differentiable(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOATS:
        raise WrongValueError(f"{name} must be float32 or float64 where a gradient is needed, not {tensor.dtype}")


# -- backward passes ---------------------------------------------------------------------------------------------------


def tracked(*tensors: Tensor | None) -> bool:
    """Return whether autograd records operations on these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


class _Recorded(torch.autograd.Function):
    """``run(ctx, *inputs)``, whose gradients for ``inputs`` are ``back(ctx, gradient)``.

    ``run`` saves in ``ctx`` the tensors that ``back`` needs. ``ctx.needs_input_grad`` ends with the flags of ``inputs``.
    """

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., Tensor], back: Callable[[Any, Tensor], Gradients], *inputs: Tensor | None
    ) -> Tensor:
        ctx.back = back
        return run(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        found: Gradients = (_refusing if torch.is_grad_enabled() else _given_back)(ctx, *gradients)
        return found


def _given_back(ctx: Any, *gradients: Tensor) -> Gradients:
    ctx.references = references(*gradients)
    return None, None, *ctx.back(ctx, *gradients)


_refusing = torchs_function.once_differentiable(_given_back)  # which changes nothing where gradients are not recorded
recorded = _Recorded.apply


class _Linear(torch.autograd.Function):
    """``there(x)`` for a linear ``there``, whose gradient is ``back`` of the result's. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        if torch.is_grad_enabled():  # create_graph=True: this backward pass will be differentiated
            return _Linear.apply(gradients[0], ctx.back, ctx.there), None, None
        return ctx.back(gradients[0]), None, None


recorded_linear = _Linear.apply


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """``torch.autograd.grad(outputs, inputs, gradients)``, with zeros for an input that is not used. Where it is given gradients,
    torch imports modules that take 30 MB: so they come from a scalar here."""
    with torch.enable_grad():
        scalar = recorded(lambda _, first, *others: first.new_zeros(()), lambda *_: tuple(gradients), *outputs)
    return torch.autograd.grad(scalar, inputs, materialize_grads=True)


def may_overwrite(ctx: Any) -> bool:
    """Return whether nothing but the ``back`` of :class:`_Recorded` to which autograd has given it uses this gradient, or its
    memory."""
    return bool(ctx.references == _references_of_one_user())


def is_unshared(x: Tensor) -> bool:
    """Return whether one variable of the caller is all that refers to ``x`` and its memory: no other tensor, no function that has
    saved it for its backward pass, no user. Then the caller may write a result over it."""
    return references(x) == _references_of_one_variable()


@functools.cache
def _references_of_one_variable() -> tuple[int, ...]:
    """:func:`references` in a function that is given a tensor to which one variable of its caller refers."""

    def count(x: Tensor) -> tuple[int, ...]:
        return references(x)

    x = torch.zeros(1)
    return count(x)


def references(x: Tensor) -> tuple[int, ...]:
    """The numbers of references to a tensor and to its memory, by Python and by torch; and whether it is contiguous."""
    memory = torch._C._storage_Use_Count(x.untyped_storage()._cdata)
    of_torch = x._use_count()  # type: ignore[attr-defined]  # torch's stubs leave it out
    return sys.getrefcount(x), of_torch, memory, int(x.is_contiguous())


@functools.cache
def _references_of_one_user() -> tuple[int, ...]:
    """:func:`references` to a gradient with one user, counted, because it differs between versions of Python and torch."""
    found: list[tuple[int, ...]] = []

    def back(ctx: Any, dy: Tensor) -> Gradients:
        found.append(ctx.references)
        return (dy,)

    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        torch.autograd.grad((recorded(lambda _, x: x.clone(), back, x) * 2).sum(), x)
    return found[0]


def transposed_with(csr: Csr, weight: Tensor | None, backend: str) -> tuple[Csr, Tensor | None]:
    """The transpose of ``csr``, and its entries' weights: ``weight`` in the transpose's order if given, else those stored."""
    if weight is None:
        transpose = csr.transpose()
        return transpose, transpose.weight
    return csr.structure.transpose(), _to_transpose(csr, weight, backend)


def _to_transpose(csr: Csr, values: Tensor, backend: str) -> Tensor:
    """``values`` (entries, ...) in the order of the transpose's entries."""
    return plain_rows.gather_rows(values, csr.transpose_order, backend, check=False)


def end_sums(csr: Csr, values: Tensor, wanted: Sequence[bool], backend: str) -> tuple[Tensor | None, Tensor | None]:
    """The sums of ``values`` (entries, H) over each row, (R, H), and over each column, (C, H); None where not wanted."""
    of_rows = plain_edges.edge_sum(csr, values, backend) if wanted[0] else None
    if not wanted[1]:
        return of_rows, None
    return of_rows, plain_edges.edge_sum(csr.structure.transpose(), _to_transpose(csr, values, backend), backend)


class _Spmm(torch.autograd.Function):
    """``z = A x``; ``dx = Aᵀ dz``, and the gradient of a weight is the product of its edge's two rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, csr: Csr, reduce: str, backend: str) -> Tensor:
        if ctx.needs_input_grad[1] and weight is not None:
            may_be_last(x, weight)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.csr, ctx.reduce, ctx.backend = csr, reduce, backend
        return plain_spmm(csr, x, weight, reduce, backend=backend)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        csr, dz = ctx.csr, dz.contiguous()
        if ctx.reduce == "mean":
            dz = dz / csr.row_lengths().clamp(min=1).to(dz.dtype)[:, None]
        again = torch.is_grad_enabled()  # create_graph=True: these gradients are differentiated, too
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            transpose, values = transposed_with(csr, weight, ctx.backend)
            if again and weight is not None:
                values = gather_rows(weight, csr.transpose_order, ctx.backend)
            dx = (spmm if again else plain_spmm)(transpose, dz, values, backend=ctx.backend)
        if ctx.needs_input_grad[1]:
            heads = None if weight.dim() == 1 else weight.shape[1]
            dweight = (sddmm if again else plain_edges.sddmm)(csr, dz, x, "dot", heads, ctx.backend)
        return dx, dweight, None, None, None


def _dense(
    kernels: DenseKernels, compute: str, x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None
) -> Tensor:
    def product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> tuple[Tensor, Kept]:
        return plain_dense.run_product(kernels, x, weight, bias, out, compute), (x,)

    def weight_gradient(kept: Kept, dy: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        return plain_dense.run_weight_gradient(kernels, kept[0], dy, sums, compute)

    return run_dense(product, weight_gradient, x, weight, bias, plus)


def run_dense(
    product: Callable[..., tuple[Tensor, Kept]], weight_gradient: Callable[..., tuple[Tensor, Tensor | None]],
    x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None,
) -> Tensor:  # fmt: skip
    """``y = x W + b + p``: ``dx = dy Wᵀ``, ``dW = xᵀ dy``, ``db`` sums the rows of ``dy``, ``dp = dy``.

    Args:
        product: function of (x, weight, bias, out): ``out + x @ weight + bias``, and the tensors to keep of ``x``.
        weight_gradient: function of (kept, dy, sums): ``x.T @ dy``, and with ``sums`` the sums of the columns of ``dy``.
    """
    if not tracked(x, weight, bias, plus):
        return product(x, weight, bias, _reused(plus, x.dtype))[0]

    def run(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None) -> Tensor:
        may_be_last(x, weight)
        y, kept = product(x, weight, bias, _reused(plus, x.dtype))
        ctx.save_for_backward(*kept, weight)
        return y

    def back(ctx: Any, dy: Tensor) -> Gradients:
        *kept, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_plus = ctx.needs_input_grad[-4:]
        dy = dy.contiguous()
        dx = product(dy, weight.T, None, None)[0] if needs_x else None
        dweight = dbias = None
        if needs_weight:
            dweight, dbias = weight_gradient(kept, dy, needs_bias)
        elif needs_bias:
            dbias = dy.sum(0)
        return dx, dweight, dbias, dy if needs_plus else None

    return recorded(run, back, x, weight, bias, plus)


def _reused(plus: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A writable tensor over the memory of ``plus``; a copy if ``plus`` is a leaf that needs a gradient, or not contiguous."""
    if plus is None or plus.dtype != dtype:
        return plus
    if not plus.is_contiguous() or (plus.is_leaf and plus.requires_grad):
        return plus.detach().clone(memory_format=torch.contiguous_format)
    torch.autograd.graph.increment_version(plus)
    return plus.detach()


def _activation(kernels: ActivationKernels, x: Tensor, norm: Norm | None, mask: DropoutMask | None) -> Tensor:
    """``dropout(relu(norm(x)))``. Backward computes masks and norm again from ``x``; without a norm, a bit of each value is
    enough."""
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    if not tracked(x, weight, bias):
        return plain_activation.activate(kernels, x, norm, mask)[0]

    def run(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y, kept = plain_activation.activate(kernels, x, norm, mask)
        ctx.save_for_backward(*((kept,) if norm is None else (x, weight, bias, kept)))
        return y

    def back(ctx: Any, dy: Tensor) -> Gradients:
        if norm is None:
            (positive,) = ctx.saved_tensors
            dx = plain_activation.relu_backward(kernels, dy, positive, mask, overwrites=may_overwrite(ctx))
            return dx, None, None
        x, weight, bias, statistics = ctx.saved_tensors
        return plain_activation.activate_backward(kernels, dy, x, statistics, Norm(weight, bias, eps), mask)

    return recorded(run, back, x, weight, bias)
