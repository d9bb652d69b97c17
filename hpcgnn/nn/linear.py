"""Dense products of features that may be sparse."""

from __future__ import annotations

import torch

from hpcgnn.kernels import Csr, spmm


def matmul(x: torch.Tensor | Csr, weight: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """``x @ weight``: (n, F) dense or Csr times (F, H); differentiable, for a Csr in ``weight`` only."""
    return spmm(x, weight, backend=backend) if isinstance(x, Csr) else x @ weight
