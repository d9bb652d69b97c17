"""Products of consecutive blocks of rows, each with a matrix of its own, as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.kernels import buffers, dense
from hpcgnn.kernels.again import may_be_last
from hpcgnn.kernels.autograd import recorded
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.linear import Compute, matmul, operand


def block_products(
    x: Tensor, weights: Tensor, sizes: Sequence[int], compute: Compute, backend: str = "auto", *, reuse_x: bool = False
) -> Tensor:
    """:func:`grouped_product` in the arithmetic ``compute``. In others than float32, each block is rounded by itself, and each of
    its products is an operation, also of a block without rows: a rank without any must take part in the backward pass."""
    if compute == FLOAT32:
        return grouped_product(x, weights, sizes, backend, reuse_x=reuse_x)
    found = []
    for rows, parts in zip(x.split(tuple(sizes)), weights.unbind(), strict=True):
        columns = rows.split(parts.shape[1], dim=1) if len(parts) > 1 else [rows]
        products = [matmul(operand(each.contiguous(), compute), weight, backend)
                    for each, weight in zip(columns, parts.unbind(), strict=True)]  # fmt: skip
        found.append(torch.cat(products, dim=1) if len(products) > 1 else products[0])
    return torch.cat(found)


def grouped_product(
    x: Tensor, weights: Tensor, sizes: Sequence[int], backend: str = "auto", *, reuse_x: bool = False
) -> Tensor:
    """``x_r @ W_r`` for each block of rows x_r of ``x``, one below the other. Differentiable in both. Not collective.

    Hundreds of blocks are one operation for autograd, which keeps ``x`` and the weights only. Each block's result is written to
    its place in the whole.

    Args:
        x: (p, F) float32 or float64.
        weights: (R, K, F / K, H / K) of the type of ``x``: block-diagonal matrices of K blocks.
        sizes: number of rows of each of the R blocks, which may be 0.
        reuse_x: the gradient of ``x`` is written over ``x``, which nothing else may use then.

    Returns:
        (p, H) of the type of ``x``.
    """
    kernels = dense.kernels_for(x, backend)

    def run(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        if any(ctx.needs_input_grad):  # else nothing is saved
            may_be_last(x, weights)
        ctx.save_for_backward(x, weights)
        y = buffers.empty(x.shape[0], weights.shape[1] * weights.shape[3], x.dtype, x.device)
        kernels.grouped_product(x, weights, sizes, y)
        return y

    def back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (x, weights), dy = ctx.saved_tensors, dy.contiguous()
        needs_x, needs_weights = ctx.needs_input_grad[-2:]
        dx = dweights = None
        if needs_weights:
            dweights = torch.empty_like(weights)
            kernels.grouped_gradient(x, dy, sizes, dweights)
        if needs_x:
            dx = x.detach() if reuse_x else buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
            kernels.grouped_product(dy, weights.mT, sizes, dx)
            if reuse_x:
                torch.autograd.graph.increment_version(x)  # a second backward pass is an error, then
        return dx, dweights

    return recorded(run, back, x.contiguous(), weights.contiguous())
