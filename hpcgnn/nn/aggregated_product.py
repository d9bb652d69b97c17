"""The product of aggregated rows with a weight, ``y = A x W + x W_root + b``, as one step forward and one backward.

A layer could call an aggregator and two products, and :func:`_composed` does so. As one step, its backward pass begins to send
gradients before it computes those of the weights, it adds the two gradients of ``x`` in the memory of one, and it holds a matrix
no longer than it is needed. So that is the way for dense rows; sparse features, features on disk, and rows that are aggregated
once for all epochs, take the other.

Shapes: n owned nodes; x (n, F), W and W_root (F, H), b (H,), y (n, H).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.kernels import buffers
from hpcgnn.kernels.activation import column_sums
from hpcgnn.kernels.autograd import Gradients, is_unshared, may_overwrite, recorded, tracked
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.nn.activations import Activations, Form, save, saved
from hpcgnn.nn.aggregator import Aggregator, CachedAggregator
from hpcgnn.nn.compute import Rounded
from hpcgnn.nn.int8 import Int8, Int8Operand, SummedRows
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, Narrow, matmul, operand, product_into, weight_gradient
from hpcgnn.nn.on_disk import DiskOperand


@dataclass(frozen=True)
class Order:
    """The order and the arithmetic of a layer's product.

    aggregator: A. transform_first: True for ``A (x W)``, whose rows of H columns travel, False for ``(A x) W``, whose rows of F
    columns do. compute: the arithmetic of products. activations: the way in which A x is kept; with ``recompute``, backward
    computes it again, from x and the received bytes.
    """

    aggregator: Aggregator | CachedAggregator
    transform_first: bool
    compute: Compute
    activations: Activations = field(default_factory=Activations)

    def times(self, x: Tensor | Narrow, weight: Tensor, **others: Tensor | None) -> Tensor:
        """``x @ weight`` plus the ``bias`` or the matrix ``plus``."""
        return matmul(x, weight, self.aggregator.backend, **others)

    def write(
        self, out: Tensor, x: Tensor | Narrow, weight: Tensor, bias: Tensor | None = None, *, adds: bool = False
    ) -> None:
        """Write ``x @ weight`` plus the ``bias`` to ``out``, or add it."""
        product_into(out, x, weight, bias, self.aggregator.backend, adds=adds)

    def gradient(self, x: Any, dy: Tensor | Narrow) -> Tensor:
        """``x.T @ dy`` (F, H) for x (n, F); of the integers of dy, if another product has made them."""
        return weight_gradient(x, dy, self.aggregator.backend)


def aggregated_product(
    order: Order, x: Features | LabelledFeatures, weight: Tensor, root: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``A x W + x W_root + b``; root and bias may be None. Collective, forward and backward."""
    if not (isinstance(x, Tensor) and isinstance(order.aggregator, Aggregator)):
        return _composed(order, x, weight, root, bias)
    given, run = (x, weight, root, bias), partial(_run, order)
    if tracked(*given):
        return recorded(run, _back, *given)
    # the context of a pass that no gradient follows
    return run(SimpleNamespace(needs_input_grad=(False,) * 4, save_for_backward=lambda *tensors: None), *given)


def _composed(
    order: Order, x: Features | LabelledFeatures, weight: Tensor, root: Tensor | None, bias: Tensor | None
) -> Tensor:
    own, backend = operand(x, order.compute), order.aggregator.backend
    if not order.transform_first:
        if not isinstance(x, Tensor | FeaturesOnDisk):
            raise TypeError("sparse features must be transformed before they are aggregated")
        aggregated = operand(order.aggregator(x), order.compute)
        rooted = None if root is None else matmul(own, root, backend)
        return matmul(aggregated, weight, backend, bias=bias, plus=rooted)
    if isinstance(own, DiskOperand) and root is not None:  # the features are read once for both
        sent, rooted = own.times(torch.cat((weight, root), 1), None, None, backend).tensor_split([weight.shape[1]], 1)
        sums = order.aggregator(sent.contiguous()) + rooted
        return sums if bias is None else sums + bias
    under_way = order.aggregator.begin(matmul(own, weight, backend))
    rooted = bias if root is None else matmul(own, root, backend, bias=bias)  # while rows travel
    return under_way.finish() if rooted is None else under_way.finish() + rooted


def _run(order: Order, ctx: Any, x: Tensor, weight: Tensor, root: Tensor | None, bias: Tensor | None) -> Tensor:
    """``A x W + x W_root + b``, in either order of A and W.

    With ``t = Aᵀ dy``, gradients are ``dx = t Wᵀ + dy W_rootᵀ`` and ``dW = xᵀ t``, so x alone is kept. But where x needs no
    gradient, or fewer columns of ``dy Wᵀ`` would travel than of dy, ``dW = (A x)ᵀ dy`` is better, and the sums A x are kept, too.
    So they are where messages are rounded or stale, which gives dW the errors of features and not those of gradients.
    """
    aggregator, own, needs = _forward_aggregator(order), operand(x, order.compute), ctx.needs_input_grad[-4:]
    ctx.order, ctx.repeats = order, False
    prefers_rows = weight.shape[1] <= weight.shape[0] and aggregator.exchange.is_exact  # the same on all ranks
    ctx.by_rows = order.transform_first or not needs[1] or (needs[0] and prefers_rows)
    reads_integers = isinstance(order.compute, Int8) and order.compute.multiplies(x.shape[0], *weight.shape)
    if order.transform_first:
        y = _transformed(order, own, weight, root, bias)
    elif (ctx.by_rows or reads_integers) and (blocks := aggregator.in_blocks(x)) is not None:
        y, kept = _by_blocks(order, blocks, (x, own), (weight, root), bias, keeps=not ctx.by_rows)
        if kept is not None:
            assert isinstance(order.compute, Int8)
            of_sums = Int8Operand(x, order.compute, integers=kept)  # of A x, only the integers exist
            _save(ctx, (weight, root), None if root is None else _form(own), _form(of_sums))
            return y
    else:
        scaled, message = aggregator.start_step(x)
        rooted = None if root is None else order.times(own, root, bias=bias)  # while rows travel
        z = aggregator.finish_step(scaled, message)
        del scaled
        sums = operand(z, order.compute)
        y = order.times(sums, weight, plus=rooted, bias=bias if root is None else None)
        if not ctx.by_rows:
            _keep_sums(ctx, x, own, (weight, root), sums, message)
            return y
    _save(ctx, (weight, root), _form(own.coded(weight.shape[1]) if isinstance(own, Int8Operand) else own))
    return y


def _back(ctx: Any, dy: Tensor) -> Gradients:
    return (_gradients_by_rows if ctx.by_rows else _gradients_by_sums)(ctx, dy.contiguous())


def _by_blocks(
    order: Order, blocks: Iterator[tuple[slice, Tensor]], x: tuple[Tensor, Tensor | Narrow],
    weights: tuple[Tensor, Tensor | None], bias: Tensor | None, *, keeps: bool,
) -> tuple[Tensor, Int8Rows | None]:  # fmt: skip
    """``A x W + x W_root + b`` from blocks of A x, and, if ``keeps``, the integers of A x. x: the rows and their operand."""
    (rows, own), (weight, root), kept = x, weights, None
    y = buffers.empty(rows.shape[0], weight.shape[1], rows.dtype, rows.device)
    if keeps and isinstance(order.compute, Int8):
        codes = buffers.empty(rows.shape[0], rows.shape[1], torch.int8, rows.device)
        kept = Int8Rows(codes, torch.empty(rows.shape[0], device=rows.device))
    if root is not None:
        order.write(y, own, root, bias)
    for place, block in blocks:
        given = operand(block, order.compute, rows.shape[0])
        order.write(y[place], given, weight, bias if root is None else None, adds=root is not None)
        if kept is not None and isinstance(given, Int8Operand) and isinstance(given.integers, Int8Rows):
            kept.codes[place], kept.scale[place] = given.integers.codes, given.integers.scale
    return y, kept


def _transformed(
    order: Order, own: Tensor | Narrow, weight: Tensor, root: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``A (x W) + x W_root + b``."""
    aggregator = _forward_aggregator(order)
    under_way = aggregator.start_step(order.times(own, weight), is_temporary=True)
    y = None if root is None else order.times(own, root, bias=bias)  # while rows travel
    y = aggregator.finish_step(*under_way, y)
    if root is None and bias is not None:
        y.add_(bias)
    return y


def _keep_sums(
    ctx: Any, x: Tensor, own: Tensor | Narrow, weights: tuple[Tensor, Tensor | None], sums: Tensor | Narrow,
    message: Message,
) -> None:  # fmt: skip
    """Keep x and the sums A x; or, to make these again, the message that arrived."""
    order, root, width = ctx.order, weights[1], x.shape[1]
    # Integers would be rounded anew.
    repeats = order.activations.repeats and not isinstance(order.compute, Int8)
    is_small = message.received.nbytes < x.shape[0] * width * x.element_size()
    came = _forward_aggregator(order).kept(message) if repeats and is_small else None
    ctx.repeats = came is not None
    if came is not None:
        _save(ctx, weights, _form(x), came)
    else:
        _save(ctx, weights, None if root is None else _form(own), order.activations.form(*_form(sums)))


def _gradients_by_sums(ctx: Any, dy: Tensor) -> Gradients:
    """``dW = (A x)ᵀ dy`` and ``dx = Aᵀ (dy Wᵀ) + dy W_rootᵀ``."""
    order, reverse, needs = ctx.order, _forward_aggregator(ctx.order).reverse, ctx.needs_input_grad[-4:]
    (weight, root), (own, sums) = _saved(ctx)
    under_way, given, dx = None, operand(dy, order.compute), None
    if needs[0]:
        under_way = reverse.start_step(order.times(given, weight.T), is_temporary=True)
    # while gradients travel
    if ctx.repeats:  # sums are the message until here
        sums = operand(_forward_aggregator(order).again(own, sums), order.compute)
        own = operand(own, order.compute)
    dweight = order.gradient(sums, given) if needs[1] else None
    del sums
    droot, dbias = _gradients_of_root(ctx, own, root, given)
    if under_way is not None:
        dx = reverse.finish_step(*under_way, None if root is None else order.times(given, root.T))
    return dx, dweight, droot, dbias


def _gradients_by_rows(ctx: Any, dy: Tensor) -> Gradients:
    """``dW = xᵀ t`` and ``dx = t Wᵀ + dy W_rootᵀ`` with ``t = Aᵀ dy``, which exists in blocks of rows where nothing travels."""
    order, reverse, needs = ctx.order, _forward_aggregator(ctx.order).reverse, ctx.needs_input_grad[-4:]
    (weight, root), (own,) = _saved(ctx)
    given, dx, dweight = operand(dy, order.compute), None, None
    if not (needs[0] or needs[1]):
        return None, None, *_gradients_of_root(ctx, own, root, given)
    blocks = reverse.in_blocks(dy)
    # dx may be written over x, block by block; where gradients travel, this takes time that hides them
    takes = blocks is not None or (order.activations.repeats and not isinstance(order.compute, Int8))
    under_way = reverse.start_step(dy) if blocks is None else None
    if root is not None and needs[0] and isinstance(given, Int8Operand):
        given.coded(root.shape[0])  # once for dx and for the gradient of W_root
    droot, dbias = _gradients_of_root(ctx, own, root, given)  # while gradients travel
    if needs[0]:
        if takes and isinstance(own, Tensor) and is_unshared(own):
            dx = own.detach()
        elif takes and isinstance(own, Rounded) and own.x.dtype is dy.dtype and is_unshared(own.x):
            dx = own.x.detach()
        elif blocks is not None and _may_take(ctx, dy, given, weight, root):
            dx = dy.detach()
        else:
            dx = buffers.empty(dy.shape[0], weight.shape[0], dy.dtype, dy.device)
        if root is not None and not takes:
            order.write(dx, given, root.T)
    whole = [] if under_way is None else [(slice(0, dy.shape[0]), reverse.finish_step(*under_way))]
    for place, t in blocks or whole:
        sums = operand(t, order.compute, dy.shape[0])
        if needs[0] and isinstance(sums, Int8Operand):
            sums.coded(weight.shape[0])  # once for both products
        if needs[1]:
            found = order.gradient(_rows(own, place), sums)
            dweight = found if dweight is None else dweight.add_(found)
        if dx is not None:
            if root is not None and takes:
                order.write(dx[place], _rows(given, place), root.T)
            order.write(dx[place], sums, weight.T, adds=root is not None)
    if needs[1] and dweight is None:  # no row
        dweight = torch.zeros_like(weight)
    return dx, dweight, droot, dbias


def _may_take(ctx: Any, dy: Tensor, given: Tensor | Narrow, weight: Tensor, root: Tensor | None) -> bool:
    """Return whether blocks of dx may be written over dy: it has the same shape and no other user, and the aggregation and the
    product with W_root read its integers alone."""
    reverse = _forward_aggregator(ctx.order).reverse
    sums = isinstance(reverse.rows, SummedRows) and reverse.rows.int8.aggregates(reverse.plan.local, dy)
    product = root is None or (isinstance(given, Int8Operand) and isinstance(given.integers, Int8Rows))
    return sums and product and weight.shape[0] == weight.shape[1] and may_overwrite(ctx)


def _rows(each: Any, place: slice) -> Any:
    """Some rows of an operand."""
    return each[place] if isinstance(each, Tensor) else each.rows(place)


def _gradients_of_root(
    ctx: Any, own: Any, root: Tensor | None, given: Tensor | Narrow
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of W_root and of b, for the operand ``given`` of dy."""
    order, needs, dy = ctx.order, ctx.needs_input_grad[-4:], given if isinstance(given, Tensor) else given.x
    droot = order.gradient(own, given) if root is not None and needs[2] else None
    return droot, column_sums(dy, order.aggregator.backend).to(dy.dtype) if needs[3] else None


def _forward_aggregator(order: Order) -> Aggregator:
    assert isinstance(order.aggregator, Aggregator)
    return order.aggregator


def _save(ctx: Any, weights: tuple[Tensor | None, ...], *forms: Form | None) -> None:
    """Save weights, and the forms of operands or None."""
    save(ctx, weights, [([], lambda _: None) if each is None else each for each in forms])


def _form(each: Tensor | Narrow) -> Form:
    """The form in which products have read an operand."""
    return ([each], lambda tensors: tensors[0]) if isinstance(each, Tensor) else each.kept()


def _saved(ctx: Any) -> tuple[Any, list[Any]]:
    """The weights and the operands of :func:`_save`."""
    weights, forms = saved(ctx)
    return weights, [make(tensors) for tensors, make in forms]
