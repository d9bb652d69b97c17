"""Products of features with weights; features may be dense, sparse, sparse with label embeddings, or rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import torch

from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, dense, spmm
from hpcgnn.kernels.autograd import layer_product, once_differentiable
from hpcgnn.nn.compute import Rounded, sum_of
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.int8 import Int8, Int8Factor, Int8Operand

Features = torch.Tensor | Csr
Given = Features | FeaturesByType  # with which a model is called; the last one only if it has an input layer


@dataclass(frozen=True)
class LabelledFeatures:
    """``x + labels @ embedding``, which is never computed as a matrix, because sparse features may have many thousand columns.

    x: (n, F) sparse features. labels: (n, C) matrix of ones. embedding: (C, F).
    """

    x: Csr
    labels: Csr
    embedding: torch.Tensor


# The arithmetic of products: one of :data:`hpcgnn.nn.compute.COMPUTES`, or 8-bit integers.
Compute = str | Int8
Narrow = Rounded | Int8Operand
Operand = Features | LabelledFeatures | Narrow


@overload
def operand(x: torch.Tensor, compute: Compute) -> torch.Tensor | Narrow: ...
@overload
def operand(x: Features | LabelledFeatures, compute: Compute) -> Operand: ...
def operand(x: Features | LabelledFeatures, compute: Compute) -> Operand:
    """``x`` for use in several products in the arithmetic ``compute``; products of sparse features are always float32."""
    if isinstance(compute, Int8):
        return compute.operand(x) if isinstance(x, torch.Tensor) else x
    return Rounded(x, compute) if compute != FLOAT32 and isinstance(x, torch.Tensor) else x


def matmul(
    x: Operand,
    weight: torch.Tensor,
    backend: str = "auto",
    *,
    bias: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x @ weight + bias + plus``, (n, F) times (F, H). Differentiable; for a Csr, with respect to everything but ``x``.

    bias: (H,). plus: (n, H), which is added, and whose memory may be reused for the result.
    """
    if isinstance(x, torch.Tensor):
        return layer_product(x, weight, bias, plus, backend)
    if isinstance(x, Narrow):
        return x.times(weight, bias, plus, backend)
    if isinstance(x, LabelledFeatures):
        given = spmm(x.labels, x.embedding @ weight, backend=backend)
        return sum_of(spmm(x.x, weight, backend=backend) + given, bias, plus)
    return sum_of(spmm(x, weight, backend=backend), bias, plus)


class LateWeight:
    """A weight (F, H) for one product, whose gradient is computed later than the product's other gradients.

    Autograd calls backward functions in the reverse order of the forward calls, so dW = xᵀ dy is computed when autograd reaches
    the place where this object was made. If it was made between the two halves of an aggregation, dW is computed while gradients
    travel: the rows that travel depend on dy Wᵀ only, not on dW.
    """

    def __init__(self, weight: torch.Tensor, backend: str = "auto") -> None:
        self.weight, self.backend = weight.detach(), backend
        self.waiting: tuple[torch.Tensor | Rounded | Int8Operand | Int8Factor, torch.Tensor] | None = None
        self._made: torch.Tensor | None = _Made.apply(weight, self)

    def multiply(
        self, x: torch.Tensor | Narrow, *, bias: torch.Tensor | None = None, plus: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x @ weight + bias + plus`` as by :func:`matmul`; call it only once."""
        # Autograd's nodes refer to this object: a reference cycle would keep their memory.
        made, self._made = self._made, None
        return _Used.apply(matmul(x, self.weight, self.backend, bias=bias, plus=plus), made, self, x)

    def gradient(self) -> torch.Tensor:
        """The (F, H) gradient, available once autograd has visited the product."""
        assert self.waiting is not None, "the product's gradients come before its weight's"
        (x, dy), self.waiting = self.waiting, None
        if isinstance(x, torch.Tensor):
            return dense.run_weight_gradient(dense.kernels_for(x, self.backend), x, dy)[0]
        return x.weight_gradient(dy, self.backend)


class _Made(torch.autograd.Function):
    """The place in the graph of operations where a weight's gradient is computed."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, late: LateWeight) -> torch.Tensor:
        ctx.late = late
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.late.gradient(), None


class _Used(torch.autograd.Function):
    """The product, whose backward pass keeps the factors of the weight's gradient for :class:`_Made`."""

    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, made: torch.Tensor, late: LateWeight, x: torch.Tensor | Narrow
    ) -> torch.Tensor:
        ctx.late, ctx.rounded = late, None
        if isinstance(x, Narrow):
            ctx.rounded = x.factor() if isinstance(x, Int8Operand) else x
        else:
            ctx.save_for_backward(x.detach())
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        # Frees the memory after this gradient, and not only with the whole graph.
        rounded, ctx.rounded = ctx.rounded, None
        if ctx.needs_input_grad[1]:
            ctx.late.waiting = (rounded or ctx.saved_tensors[0], gradients[0])
        return gradients[0], gradients[0].new_empty(0), None, None
