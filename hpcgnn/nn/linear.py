"""Products of features with weights; features may be dense, sparse, sparse with label embeddings, or rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import torch

from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, dense, spmm
from hpcgnn.kernels.autograd import layer_product
from hpcgnn.nn.compute import Rounded, sum_of
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.int8 import Int8, Int8Factor, Int8Operand
from hpcgnn.nn.on_disk import DiskOperand

Features = torch.Tensor | Csr | FeaturesOnDisk
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
Operand = Features | LabelledFeatures | Narrow | Int8Factor | DiskOperand


@overload
def operand(x: torch.Tensor, compute: Compute, of_rows: int | None = None) -> torch.Tensor | Narrow: ...
@overload
def operand(x: Features | LabelledFeatures, compute: Compute, of_rows: int | None = None) -> Operand: ...
def operand(x: Features | LabelledFeatures, compute: Compute, of_rows: int | None = None) -> Operand:
    """``x`` for use in several products in the arithmetic ``compute``; products of sparse features are always float32. of_rows:
    number of rows of the matrix of which x is a block, and whose size decides whether narrow numbers are faster."""
    if isinstance(x, FeaturesOnDisk):
        return DiskOperand(x, FLOAT32 if isinstance(compute, Int8) else compute)
    if isinstance(compute, Int8):
        return Int8Operand(x, compute, of_rows) if isinstance(x, torch.Tensor) else x
    return Rounded(x, compute, of_rows=of_rows) if compute != FLOAT32 and isinstance(x, torch.Tensor) else x


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
    if isinstance(x, Narrow | Int8Factor | DiskOperand):
        return x.times(weight, bias, plus, backend)
    if isinstance(x, FeaturesOnDisk):
        return DiskOperand(x).times(weight, bias, plus, backend)
    if isinstance(x, LabelledFeatures):
        given = spmm(x.labels, x.embedding @ weight, backend=backend)
        return sum_of(spmm(x.x, weight, backend=backend) + given, bias, plus)
    return sum_of(spmm(x, weight, backend=backend), bias, plus)


def weight_gradient(
    x: torch.Tensor | Narrow | Int8Factor, dy: torch.Tensor | Narrow, backend: str = "auto"
) -> torch.Tensor:
    """``x.T @ dy`` (F, H), for x (n, F) and dy (n, H), which may be an operand of another product; not differentiable."""
    if isinstance(x, Int8Factor) and isinstance(dy, Int8Operand):
        return x.weight_gradient(dy.integers, backend)
    floats = dy.x if isinstance(dy, Narrow) else dy
    if isinstance(x, torch.Tensor):
        return dense.run_weight_gradient(dense.kernels_for(x, backend), x, floats)[0]
    return x.weight_gradient(floats, backend)


def product_into(
    out: torch.Tensor, x: torch.Tensor | Narrow | Int8Factor, weight: torch.Tensor, bias: torch.Tensor | None,
    backend: str = "auto", *, adds: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``x @ weight + bias``, written to ``out`` (n, H; any strides), or added to it (contiguous); not differentiable."""
    if adds and isinstance(x, Int8Operand) and x.write(out, weight, bias, adds=True):
        return out
    if adds:
        y = matmul(x, weight, backend, bias=bias, plus=out)
        return y if y.data_ptr() == out.data_ptr() else out.copy_(y)
    if not out.is_contiguous():
        return out.copy_(matmul(x, weight, backend, bias=bias))
    if isinstance(x, Int8Operand) and x.write(out, weight, bias, adds=False):
        return out
    if not isinstance(x, torch.Tensor):  # a copy would take a second matrix
        return product_into(out.zero_(), x, weight, bias, backend, adds=True)
    bias = None if bias is None else bias.contiguous()
    kernels = dense.checked_kernels(x, weight, bias, out, backend, FLOAT32)
    kernels.product(x.contiguous(), weight, bias, False, out, FLOAT32)
    return out
