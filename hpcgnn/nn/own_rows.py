"""``A x + factor x``, the sums over neighbours with the scaled rows of the nodes themselves (GIN), as one step.

The rows are added in the memory of the sums, forward and backward, a block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.exchange.mailbox import Message
from hpcgnn.kernels.autograd import Gradients, recorded, tracked
from hpcgnn.kernels.sizes import block_size
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import Compute

_ROWS_AT_ONCE = 1 << 10  # which fit the caches


def sums_with_own(aggregator: Aggregator, x: Tensor, factor: Tensor, compute: Compute) -> Tensor:
    """``A x + factor x``, (n, F), differentiable in x and in factor (1,). Collective, forward and backward.

    For the gradient of the factor, a sum over all values, x is kept; or its 8-bit integers if A is applied to them: their
    rounding errors have mean 0.
    """
    if not tracked(x, factor):
        return _finished(aggregator, aggregator.start_step(x), x, factor)

    def run(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        z = _finished(aggregator, aggregator.start_step(x), x, factor)
        rows = compute.quantizer.known(x) if isinstance(compute, Int8) else None
        ctx.save_for_backward(factor, *((x,) if rows is None else (rows.codes, rows.scale)))
        return z

    def back(ctx: Any, dz: Tensor) -> Gradients:
        (factor, *kept), (needs_x, needs_factor) = ctx.saved_tensors, ctx.needs_input_grad[-2:]
        dz, reverse, dx = dz.contiguous(), aggregator.reverse, None
        under_way = reverse.start_step(dz) if needs_x else None
        dfactor = _product(kept, dz).to(dz.dtype).view(1) if needs_factor else None  # while gradients travel
        if under_way is not None:
            dx = _finished(reverse, under_way, dz, factor)
        return dx, dfactor

    return recorded(run, back, x, factor)


def _finished(aggregator: Aggregator, under_way: tuple[Any, Message], x: Tensor, factor: Tensor) -> Tensor:
    z = aggregator.finish_step(*under_way)
    size = block_size(_ROWS_AT_ONCE, z.shape[0])
    for sums, rows in zip(z.split(size), x.split(size), strict=True):
        sums.add_(factor * rows)
    return z


def _product(kept: Sequence[Tensor], dz: Tensor) -> Tensor:
    """The float64 sum of the products of all values of x (n, F), as it was kept, and ``dz`` (n, F)."""
    total = dz.new_zeros((), dtype=torch.float64)
    size = block_size(_ROWS_AT_ONCE, dz.shape[0])
    for rows, *parts in zip(dz.split(size), *(each.split(size) for each in kept), strict=True):
        products = (rows * parts[0]).sum(1, dtype=torch.float64)
        total += (products if len(parts) == 1 else products * parts[1]).sum()
    return total
