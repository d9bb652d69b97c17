"""Layers in which the weight of a neighbour depends on both ends of the edge: GAT and GATv2.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, H heads, C columns of a head. Only transformed rows
travel: the receiver computes a neighbour's scores from the row that it has received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hpcgnn.kernels import attention_weights, edge_softmax, sddmm, spmm
from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.kernels.autograd_functions import layer_product
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.dropout import KeyedDropout
from hpcgnn.nn.halo import AttentionEdges
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, matmul, operand
from hpcgnn.nn.partial_attention import NEGATIVE_SLOPE, PartialPlan, partial_attention


@dataclass(frozen=True)
class Heads:
    """The heads of a layer. count: H. width: C. join: True concatenates the heads, False averages them."""

    count: int
    width: int
    join: bool


@dataclass(frozen=True)
class Neighbours:
    """The neighbours over which a layer attends. halo: the aggregator that brings the rows of halo nodes. edges: the edges with
    attention weights. drop: the dropout of these weights.
    """

    halo: Aggregator
    edges: AttentionEdges
    drop: KeyedDropout

    def attend(self, rows: torch.Tensor, weights: torch.Tensor, compute: Compute) -> torch.Tensor:
        """(n, H*C) sums of (m, H*C) rows with (e, H) weights, of which dropout sets some to 0."""
        return spmm_in(compute)(self.edges.csr, rows, self.drop(weights), backend=self.halo.backend)


class _Attention(torch.nn.Module):
    """The common part of all layers with attention."""

    def __init__(self, heads: Heads, compute: Compute, backend: str) -> None:
        super().__init__()
        self.heads, self.compute, self.backend = heads, compute, backend
        self.bias = torch.nn.Parameter(torch.zeros(heads.count * heads.width if heads.join else heads.width))

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """See :meth:`hpcgnn.nn.layers.EndsWithBias.last_biases`."""
        return (self.bias,)

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        """Concatenate or average the heads of (n, H*C), and add the bias: (n, H*C) or (n, C)."""
        heads = self.heads
        return (y if heads.join else y.view(-1, heads.count, heads.width).mean(1)).add_(self.bias)


class _GAT(_Attention):
    """The parameters of GAT (Veličković et al.). Scores are ``LeakyReLU(a · W x_i + b · W x_j)``, as in PyG's ``GATConv``."""

    def __init__(self, in_width: int, heads: Heads, compute: Compute, backend: str) -> None:
        super().__init__(heads, compute, backend)
        self.weight = torch.nn.Parameter(torch.empty(in_width, heads.count * heads.width))
        self.attend_source = torch.nn.Parameter(torch.empty(heads.count, heads.width))
        self.attend_target = torch.nn.Parameter(torch.empty(heads.count, heads.width))
        for parameter in (self.weight, self.attend_source, self.attend_target):
            torch.nn.init.xavier_uniform_(parameter)

    def transformed(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """``W x``: (n, F_in) features to (n, H*C)."""
        return matmul(operand(x, self.compute), self.weight, self.backend)


class GATLayer(_GAT):
    """GAT over the rows of halo nodes."""

    def __init__(self, in_width: int, heads: Heads, neighbours: Neighbours, compute: Compute = "float32") -> None:
        super().__init__(in_width, heads, compute, neighbours.halo.backend)
        # registered as a submodule, so that model.eval() turns dropout off
        self.neighbours, self.drop = neighbours, neighbours.drop

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) features to (n, H*C), or (n, C) with averaged heads. Collective."""
        own, near = self.transformed(x), self.neighbours
        under_way = near.halo.begin(own)
        target = _dots(own, self.attend_target, self.compute, self.backend)  # while rows travel
        rows = under_way.finish()
        source = _dots(rows, self.attend_source, self.compute, self.backend)
        weights = attention_weights(near.edges.csr, target, source, NEGATIVE_SLOPE, self.backend)
        return self.joined(near.attend(rows, weights, self.compute))


class PartialGATLayer(_GAT):
    """GAT by :mod:`hpcgnn.nn.partial_attention`. plan: the plan of this layer. drops: the dropouts of the weights of S, and of
    the weights of L and R.
    """

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
        """(n, F_in) features to (n, H*C), or (n, C) with averaged heads. Collective."""
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
    """GATv2 (Brody et al.). Scores are ``a · LeakyReLU(W_t x_i + W_s x_j)``, as in PyG's ``GATv2Conv``."""

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
        """(n, F_in) features to (n, H*C), or (n, C) with averaged heads. Collective."""
        given, near = operand(x, self.compute), self.neighbours
        under_way = near.halo.begin(matmul(given, self.weight_source, self.backend, bias=self.bias_source))
        target = matmul(given, self.weight_target, self.backend, bias=self.bias_target)  # while rows travel
        rows = under_way.finish()
        joint = sddmm(near.edges.csr, target, rows, "add", backend=self.backend)
        joint = F.leaky_relu(joint, NEGATIVE_SLOPE, inplace=True)  # (e, H*C) is the largest of all tensors here
        weights = edge_softmax(
            near.edges.csr, _dots(joint, self.attend, self.compute, self.backend), backend=self.backend
        )
        return self.joined(near.attend(rows, weights, self.compute))


def spmm_in(compute: Compute) -> Callable[..., torch.Tensor]:
    """:func:`hpcgnn.kernels.spmm` with weights, in the arithmetic ``compute``."""
    return compute.spmm if isinstance(compute, Int8) else spmm


def _dots(rows: torch.Tensor, vectors: torch.Tensor, compute: Compute, backend: str) -> torch.Tensor:
    """(r, H) products of each head of (r, H*C) with its vector of (H, C), by one matrix product and without an (r, H*C)
    temporary.

    These become attention's scores, for which 8-bit integers are too coarse (Tango Eq. 8), so integers are used only if the
    user asks for them before the softmax.
    """
    block = torch.block_diag(*vectors[:, :, None])
    if isinstance(compute, Int8) and compute.config.before_softmax and compute.is_training_pass:
        return integers.dense(rows, block, None, None, compute.quantizer)
    return layer_product(rows, block, backend=backend)
