"""Products in 8-bit integers with gradients (Tango §3.3); forward and backward use the same kernels.

Operands are kept for backward as integers, a quarter of the bytes; weights, and all gradients, are float32.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from hpcgnn.kernels import dense as products
from hpcgnn.kernels import int8
from hpcgnn.kernels.autograd import Gradients, Kept, layer_product, recorded, run_dense, transposed_with
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.quantizer import Quantizer
from hpcgnn.kernels.spmm import spmm as plain_spmm


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None, quantizer: Quantizer) -> Tensor:
    """``x @ weight + bias + plus`` for ``x`` (n, F) and ``weight`` (F, H), float32 and differentiable in all four.

    The memory of ``plus`` may become that of the result, as for :func:`hpcgnn.kernels.autograd.dense`.
    """

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> tuple[Tensor, Kept]:
        rows, backend = quantizer.rows(x), quantizer.backend
        y = int8.product(rows, weight, bias, out, weight_key=quantizer.next_key(), backend=backend)
        return y, (rows.codes, rows.scale)

    def weight_gradient(kept: Kept, dy: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        key, backend = quantizer.next_key(), quantizer.backend
        return int8.weight_gradient(Int8Rows(*kept), dy, key=key, sums=sums, backend=backend)

    return run_dense(product, weight_gradient, x, weight, bias, plus)


def spmm(csr: Csr, x: Tensor, weight: Tensor | None, quantizer: Quantizer) -> Tensor:
    """:func:`hpcgnn.kernels.spmm` of ``x`` (C, F), quantized to 8-bit integers, with float32 ``weight`` (entries,) or (entries,
    H).

    Differentiable in both; the gradient of ``weight`` is an integer SDDMM. Without ``weight``, ``csr.weight`` is used.
    """
    backend = quantizer.backend

    def run(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        rows = quantizer.rows(x)
        weight = None if weight is None else weight.contiguous()
        ctx.save_for_backward(weight, *((rows.codes, rows.scale) if ctx.needs_input_grad[-1] else ()))
        return plain_spmm(csr, rows.codes, weight, scale=rows.scale, backend=backend)

    def back(ctx: Any, dz: Tensor) -> Gradients:
        weight, *kept = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[-2:]
        gradient = quantizer.rows(dz.contiguous())  # quantized once for both products
        dx = dweight = None
        if needs_x:
            transpose, values = transposed_with(csr, weight, backend)
            dx = plain_spmm(transpose, gradient.codes, values, scale=gradient.scale, backend=backend)
        if needs_weight:
            heads = None if weight.dim() == 1 else weight.shape[1]
            dweight = int8.sddmm(csr, gradient, Int8Rows(*kept), heads, backend)
        return dx, dweight

    return recorded(run, back, x, weight)


def head_products(x: Tensor, vectors: Tensor, quantizer: Quantizer) -> Tensor:
    """(n, H) float32 products of each head of ``x`` (n, H*C) with its vector of ``vectors`` (H, C); differentiable in both.

    They are computed from ``x``. Backward needs ``x`` only for the gradient of ``vectors``, a sum over all rows, for which its
    integers are kept: their rounding errors have mean 0.
    """
    backend = quantizer.backend

    def run(ctx: Any, x: Tensor, vectors: Tensor) -> Tensor:
        rows = quantizer.rows(x)
        ctx.save_for_backward(vectors, rows.codes, rows.scale)
        return layer_product(x, torch.block_diag(*vectors[:, :, None]), backend=backend)

    def back(ctx: Any, dy: Tensor) -> Gradients:
        vectors, codes, scale = ctx.saved_tensors
        dx = dvectors = None
        dy = dy.contiguous()
        if ctx.needs_input_grad[-2]:
            dx = layer_product(dy, torch.block_diag(*vectors[:, None, :]), backend=backend)
        if ctx.needs_input_grad[-1]:
            dvectors = vector_gradient(Int8Rows(codes, scale), dy, vectors, backend)
        return dx, dvectors

    return recorded(run, back, x, vectors)


def vector_gradient(x: Int8Rows, dy: Tensor, vectors: Tensor, backend: str) -> Tensor:
    """The gradient of ``vectors`` (H, C) for products of each head of ``x`` (n, H*C) with its vector, from theirs (n, H)."""
    if x.codes.is_cpu:
        return plain_spmm(_sum_of_all(x.shape[0]), x.codes, dy, scale=x.scale, backend=backend).view(vectors.shape)
    floats = x.codes * x.scale[:, None]
    found = products.run_weight_gradient(products.kernels_for(floats, backend), floats, dy)[0]
    return found.view(*vectors.shape, -1).diagonal(dim1=0, dim2=2).T.contiguous()


@functools.lru_cache(maxsize=4)
def _sum_of_all(rows: int) -> Csr:
    """The (1, rows) matrix of ones."""
    return Csr(torch.tensor([0, rows]), torch.arange(rows, dtype=torch.int32), rows, check=False)
