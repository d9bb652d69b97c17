"""Layers whose weights of neighbours depend on both ends: GAT and GATv2.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, H heads, C columns of a head. Only transformed rows
travel: the scores of a neighbour are made of its row where that has come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hpcgnn.kernels import attention_weights, dense_product, edge_softmax, sddmm, spmm
from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.dropout import KeyedDropout
from hpcgnn.nn.halo import AttentionEdges
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, matmul, operand
from hpcgnn.nn.partial_attention import NEGATIVE_SLOPE, PartialPlan, partial_attention


@dataclass(frozen=True)
class Heads:
    """count: H. width: C. join: heads side by side; else their mean."""

    count: int
    width: int
    join: bool


@dataclass(frozen=True)
class Neighbours:
    """halo: brings neighbours' rows. edges: what attention is paid along. drop: dropout of its weights."""

    halo: Aggregator
    edges: AttentionEdges
    drop: KeyedDropout

    def attend(self, rows: torch.Tensor, weights: torch.Tensor, compute: Compute) -> torch.Tensor:
        """(m, H*C) rows to the (n, H*C) sums weighed by (e, H) weights, of which some are dropped."""
        return spmm_in(compute)(self.edges.csr, rows, self.drop(weights), backend=self.halo.backend)


class _Attention(torch.nn.Module):
    """The common part of all layers with attention."""

    def __init__(self, heads: Heads, compute: Compute, backend: str) -> None:
        super().__init__()
        self.heads, self.compute, self.backend = heads, compute, backend
        self.bias = torch.nn.Parameter(torch.zeros(heads.count * heads.width if heads.join else heads.width))

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """As :meth:`hpcgnn.nn.layers.EndsWithBias.last_biases`."""
        return (self.bias,)

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        """(n, H*C) to (n, H*C), or (n, C), with the bias."""
        heads = self.heads
        return (y if heads.join else y.view(-1, heads.count, heads.width).mean(1)).add_(self.bias)


class _GAT(_Attention):
    """GAT's parameters (Veličković et al.); scores are ``LeakyReLU(a · W x_i + b · W x_j)``, as in PyG's ``GATConv``."""

    def __init__(self, in_width: int, heads: Heads, compute: Compute, backend: str) -> None:
        super().__init__(heads, compute, backend)
        self.weight = torch.nn.Parameter(torch.empty(in_width, heads.count * heads.width))
        self.attend_source = torch.nn.Parameter(torch.empty(heads.count, heads.width))
        self.attend_target = torch.nn.Parameter(torch.empty(heads.count, heads.width))
        for parameter in (self.weight, self.attend_source, self.attend_target):
            torch.nn.init.xavier_uniform_(parameter)

    def transformed(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, H*C)."""
        return matmul(operand(x, self.compute), self.weight, self.backend)


class GATLayer(_GAT):
    """GAT over the halo."""

    def __init__(self, in_width: int, heads: Heads, neighbours: Neighbours, compute: Compute = "float32") -> None:
        super().__init__(in_width, heads, compute, neighbours.halo.backend)
        self.neighbours, self.drop = neighbours, neighbours.drop  # as a module, it learns when to drop nothing

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, H*C), or (n, C). Collective."""
        own, near = self.transformed(x), self.neighbours
        under_way = near.halo.begin(own)
        target = _dots(own, self.attend_target, self.compute, self.backend)  # while rows travel
        rows = under_way.finish()
        source = _dots(rows, self.attend_source, self.compute, self.backend)
        weights = attention_weights(near.edges.csr, target, source, NEGATIVE_SLOPE, self.backend)
        return self.joined(near.attend(rows, weights, self.compute))


class PartialGATLayer(_GAT):
    """GAT by :mod:`hpcgnn.nn.partial_attention`. plan: of this layer. drops: of the weights of S, and of L beside R."""

    def __init__(
        self,
        in_width: int,
        heads: Heads,
        plan: PartialPlan,
        drops: tuple[KeyedDropout, KeyedDropout],
        compute: Compute = "float32",
    ) -> None:
        super().__init__(in_width, heads, compute, plan.rows.backend)
        self.plan, (self.send_drop, self.drop) = plan, drops

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, H*C), or (n, C). Collective."""
        own = self.transformed(x)
        source, target = (
            _dots(own, self.attend_source, self.compute, self.backend),
            _dots(own, self.attend_target, self.compute, self.backend),
        )
        return self.joined(
            partial_attention(
                self.plan, own, source, target, (self.send_drop, self.drop), self.backend, spmm_in(self.compute)
            )
        )


class GATv2Layer(_Attention):
    """Scores ``a · LeakyReLU(W_t x_i + W_s x_j)`` (Brody et al.); PyG's ``GATv2Conv``."""

    def __init__(self, in_width: int, heads: Heads, neighbours: Neighbours, compute: Compute = "float32") -> None:
        super().__init__(heads, compute, neighbours.halo.backend)
        self.neighbours, self.drop = neighbours, neighbours.drop
        width = heads.count * heads.width
        self.weight_source = torch.nn.Parameter(torch.empty(in_width, width))
        self.bias_source = torch.nn.Parameter(torch.zeros(width))
        self.weight_target = torch.nn.Parameter(torch.empty(in_width, width))
        self.bias_target = torch.nn.Parameter(torch.zeros(width))
        self.attend = torch.nn.Parameter(torch.empty(heads.count, heads.width))
        for parameter in (self.weight_source, self.weight_target, self.attend):
            torch.nn.init.xavier_uniform_(parameter)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, H*C), or (n, C). Collective."""
        given, near = operand(x, self.compute), self.neighbours
        under_way = near.halo.begin(matmul(given, self.weight_source, self.backend, bias=self.bias_source))
        target = matmul(given, self.weight_target, self.backend, bias=self.bias_target)  # while rows travel
        rows = under_way.finish()
        joint = sddmm(near.edges.csr, target, rows, "add", backend=self.backend)
        joint = F.leaky_relu(joint, NEGATIVE_SLOPE, inplace=True)  # of (e, H*C): the largest of all tensors here
        weights = edge_softmax(
            near.edges.csr, _dots(joint, self.attend, self.compute, self.backend), backend=self.backend
        )
        return self.joined(near.attend(rows, weights, self.compute))


def spmm_in(compute: Compute) -> Callable[..., torch.Tensor]:
    """:func:`hpcgnn.kernels.spmm` with weights, in an arithmetic."""
    return compute.spmm if isinstance(compute, Int8) else spmm


def _dots(rows: torch.Tensor, vectors: torch.Tensor, compute: Compute, backend: str) -> torch.Tensor:
    """(r, H*C) to (r, H): of each head with its vector (H, C). One product, with nothing of (r, H*C) in between.

    These become attention's scores, for which 8-bit integers are too coarse (Tango Eq. 8): they are taken where that is wanted.
    """
    block = torch.block_diag(*vectors[:, :, None])
    if isinstance(compute, Int8) and compute.config.before_softmax and compute.is_on:
        return integers.dense(rows, block, None, None, compute.quantizer)
    return dense_product(rows, block, backend=backend)
