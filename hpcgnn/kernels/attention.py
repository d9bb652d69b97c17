"""Attention weights in one autograd step, which saves memory: (entries, H) tensors are the largest ones of attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_number, check_type
from hpcgnn.kernels import edges as plain_edges
from hpcgnn.kernels.autograd_functions import end_sums, once_differentiable
from hpcgnn.kernels.csr import Csr


def attention_weights(csr: Csr, a: Tensor, b: Tensor, slope: float, backend: str = "auto") -> Tensor:
    """``edge_softmax(csr, leaky_relu(sddmm(csr, a, b, "add"), slope))``, differentiable in ``a`` (R, H) and ``b`` (C, H).

    Only the (entries, H) result is kept for backward, which computes the scores again. slope: positive slope of the leaky ReLU
    for negative scores.
    """
    check_type("csr", csr, Csr)
    check_given(a=a, b=b)
    check_number("slope", slope)
    return _AttentionWeights.apply(a, b, csr, float(slope), backend)


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
        return *end_sums(csr, of_scores.mul_(slopes), ctx.needs_input_grad[:2], backend), None, None, None
