"""Products with weights: of features that may be sparse, or sparse with label embeddings beside them, or rounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.kernels import Csr, dense_product, spmm
from hpcgnn.nn.compute import Rounded, sum_of

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


def matmul(
    x: Operand,
    weight: torch.Tensor,
    backend: str = "auto",
    *,
    bias: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x @ weight + bias + plus``: (n, F) times (F, H); differentiable, for a Csr in all but ``x``.

    bias: (H,). plus: (n, H) that is added and whose memory may be reused for the result.
    """
    if isinstance(x, torch.Tensor):
        return dense_product(x, weight, bias, plus, backend)
    if isinstance(x, Rounded):
        return x.times(weight, bias, plus, backend)
    if isinstance(x, LabelledFeatures):
        given = spmm(x.labels, x.embedding @ weight, backend=backend)
        return sum_of(spmm(x.x, weight, backend=backend) + given, bias, plus)
    return sum_of(spmm(x, weight, backend=backend), bias, plus)
