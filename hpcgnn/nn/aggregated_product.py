"""The product of aggregated rows with a weight, ``y = A x W + x W_root + b``, as one step forward and one backward.

A layer could call an aggregator and two products, and :func:`_composed` does so. As one step, its backward pass begins to send
gradients before it computes those of the weights, it adds the two gradients of ``x`` in the memory of one, and it holds a matrix
no longer than it is needed. So that is the way for dense rows; sparse features, features on disk, and rows that are aggregated
once for all epochs, take the other.

Shapes: n owned nodes; x (n, F), W and W_root (F, H), b (H,), y (n, H).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.kernels import dense
from hpcgnn.kernels.activation import column_sums
from hpcgnn.kernels.autograd import once_differentiable, tracked
from hpcgnn.nn.activations import Activations, Form
from hpcgnn.nn.aggregator import Aggregator, CachedAggregator
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, Narrow, matmul, operand
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

    def gradient(self, x: Any, dy: Tensor) -> Tensor:
        """``x.T @ dy`` (F, H) for x (n, F)."""
        backend = self.aggregator.backend
        if isinstance(x, Tensor):
            return dense.run_weight_gradient(dense.kernels_for(x, backend), x, dy)[0]
        found: Tensor = x.weight_gradient(dy, backend)
        return found


def aggregated_product(
    order: Order, x: Features | LabelledFeatures, weight: Tensor, root: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``A x W + x W_root + b``; root and bias may be None. Collective, forward and backward."""
    if not (isinstance(x, Tensor) and isinstance(order.aggregator, Aggregator)):
        return _composed(order, x, weight, root, bias)
    kind: Any = _TransformFirst if order.transform_first else _AggregateFirst
    given = (x, weight, root, bias)
    found: Tensor = kind.apply(*given, order) if tracked(*given) else kind.forward(_Nothing(), *given, order)
    return found


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


class _Nothing:
    """The context of a pass that no gradient follows."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep nothing."""


class _AggregateFirst(torch.autograd.Function):
    """``(A x) W + x W_root + b``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, root: Tensor | None, bias: Tensor | None, order: Order) -> Tensor:
        aggregator, own = _forward_aggregator(order), operand(x, order.compute)
        scaled, message = aggregator.start_step(x)
        y = None if root is None else order.times(own, root, bias=bias)  # while rows travel
        z = aggregator.finish_step(scaled, message)
        del scaled
        # Integers would be rounded anew.
        repeats = order.activations.repeats and not isinstance(order.compute, Int8)
        came = aggregator.kept(message) if repeats and message.received.nbytes < z.nbytes else None
        sums = operand(z, order.compute)
        y = order.times(sums, weight, plus=y, bias=bias if root is None else None)
        ctx.order, ctx.repeats = order, came is not None
        if came is not None:
            _save(ctx, (weight, root), _form(x), came)
        else:
            _save(ctx, (weight, root), None if root is None else _form(own), order.activations.form(*_form(sums)))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order, reverse = ctx.order, _forward_aggregator(ctx.order).reverse
        (weight, root), (own, sums) = _saved(ctx)
        dy, needs = gradients[0].contiguous(), ctx.needs_input_grad
        under_way, given, dx = None, operand(dy, order.compute), None
        if needs[0]:
            under_way = reverse.start_step(order.times(given, weight.T), is_temporary=True)
        # while gradients travel
        if ctx.repeats:  # sums are the message until here
            sums = operand(_forward_aggregator(order).again(own, sums), order.compute)
            own = operand(own, order.compute)
        dweight = order.gradient(sums, dy) if needs[1] else None
        del sums
        droot = order.gradient(own, dy) if root is not None and needs[2] else None
        dbias = column_sums(dy, order.aggregator.backend).to(dy.dtype) if needs[3] else None
        if under_way is not None:
            dx = reverse.finish_step(*under_way, None if root is None else order.times(given, root.T))
        return dx, dweight, droot, dbias, None


class _TransformFirst(torch.autograd.Function):
    """``A (x W) + x W_root + b``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, root: Tensor | None, bias: Tensor | None, order: Order) -> Tensor:
        aggregator, own = _forward_aggregator(order), operand(x, order.compute)
        under_way = aggregator.start_step(order.times(own, weight), is_temporary=True)
        y = None if root is None else order.times(own, root, bias=bias)  # while rows travel
        y = aggregator.finish_step(*under_way, y)
        if root is None and bias is not None:
            y.add_(bias)
        _save(ctx, (weight, root), _form(own))
        ctx.order = order
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order, reverse = ctx.order, _forward_aggregator(ctx.order).reverse
        (weight, root), (own,) = _saved(ctx)
        dy, needs, dx = gradients[0].contiguous(), ctx.needs_input_grad, None
        under_way = reverse.start_step(dy) if needs[0] or needs[1] else None
        # while gradients travel
        droot = order.gradient(own, dy) if root is not None and needs[2] else None
        dbias = column_sums(dy, order.aggregator.backend).to(dy.dtype) if needs[3] else None
        if root is not None and needs[0]:
            dx = order.times(operand(dy, order.compute), root.T)
        if under_way is None:
            return None, None, droot, dbias, None
        dz = reverse.finish_step(*under_way)
        dweight = order.gradient(own, dz) if needs[1] else None
        if needs[0]:
            dx = order.times(operand(dz, order.compute), weight.T, plus=dx)
        return dx, dweight, droot, dbias, None


def _forward_aggregator(order: Order) -> Aggregator:
    assert isinstance(order.aggregator, Aggregator)
    return order.aggregator


def _save(ctx: Any, weights: tuple[Tensor | None, ...], *forms: Form | None) -> None:
    """Save weights and the forms of operands, each tensor once."""
    tensors: list[Tensor | None] = list(weights)
    ctx.makers = []
    for each in forms:
        own, make = ([], lambda _: None) if each is None else each
        ctx.makers.append((len(tensors), len(tensors) + len(own), make))
        tensors += own
    ctx.num_weights = len(weights)
    ctx.save_for_backward(*tensors)


def _form(each: Tensor | Narrow) -> Form:
    """The form in which products have read an operand."""
    return ([each], lambda tensors: tensors[0]) if isinstance(each, Tensor) else each.kept()


def _saved(ctx: Any) -> tuple[Any, list[Any]]:
    """The weights and the operands of :func:`_save`."""
    tensors = ctx.saved_tensors
    getattr(ctx, "maybe_clear_saved_tensors", int)()  # so that the backward pass can free one before it makes another
    return tensors[: ctx.num_weights], [make(tensors[begin:end]) for begin, end, make in ctx.makers]
