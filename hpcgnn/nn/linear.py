"""Dense products of features that may be sparse."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.kernels import Csr, spmm


def matmul(x: torch.Tensor | Csr, weight: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """``x @ weight``: (n, F) dense or Csr times (F, H); differentiable, for a Csr in ``weight`` only."""
    return _SparseMatmul.apply(weight, x, backend) if isinstance(x, Csr) else x @ weight


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: Csr, backend: str) -> torch.Tensor:
        ctx.x, ctx.backend = x, backend
        return spmm(x, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return spmm(ctx.x.transpose(), gradients[0].contiguous(), backend=ctx.backend), None, None
