"""Products with weights: of features that may be sparse, or sparse with label embeddings beside them, or rounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.kernels import Csr, spmm
from hpcgnn.nn.compute import Rounded

Features = torch.Tensor | Csr


@dataclass(frozen=True)
class LabelledFeatures:
    """``x + labels @ embedding`` that is never written out, because sparse features may have many thousand columns.

    x: (n, F) sparse features. labels: (n, C) ones. embedding: (C, F).
    """

    x: Csr
    labels: Csr
    embedding: torch.Tensor


Operand = Features | LabelledFeatures | Rounded


def operand(x: Features | LabelledFeatures, compute: str) -> Operand:
    """``x`` for several products in the arithmetic ``compute``; sparse ones are always float32."""
    return Rounded(x) if compute == "bf16" and isinstance(x, torch.Tensor) else x


def matmul(x: Operand, weight: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """``x @ weight``: (n, F) times (F, H); differentiable, for a Csr in ``weight`` only."""
    if isinstance(x, Rounded):
        return x.times(weight)
    if isinstance(x, LabelledFeatures):
        given = spmm(x.labels, x.embedding @ weight, backend=backend)
        return spmm(x.x, weight, backend=backend) + given
    return spmm(x, weight, backend=backend) if isinstance(x, Csr) else x @ weight
