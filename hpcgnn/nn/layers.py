"""Graph layers over an :class:`~hpcgnn.nn.aggregate.Aggregator`. Shapes: x (n, F_in) -> (n, F_out), n owned nodes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch

from hpcgnn.kernels.autograd_functions import layer_activation
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.kept_aggregator import KeptAggregator
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, LateWeight, matmul, operand


def linear_first(in_width: int, out_width: int, *, needs_gradient: bool, is_sparse: bool) -> bool:
    """Return whether transforming before aggregating sends fewer bytes, forward and backward together.

    Features need no gradient unless labels are embedded in them, so aggregating features first saves the backward exchange.
    Sparse features are always transformed first.
    """
    aggregate_first_width = 2 * in_width if needs_gradient else in_width
    return is_sparse or 2 * out_width < aggregate_first_width


@runtime_checkable
class EndsWithBias(Protocol):
    """A layer whose last operation adds biases. A user's own layer need not have this method; its biases are always trained."""

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """The vectors that are added to each row of the result, and used nowhere else."""
        ...


class LinearLayer(torch.nn.Module, ABC):
    """A layer over a linear aggregator. transform_first: True if rows of the result's width travel, False if rows of the
    input's width do.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        aggregator: Aggregator | KeptAggregator,
        *,
        transform_first: bool,
        compute: Compute = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.transform_first, self.compute = aggregator, transform_first, compute
        self.add_weights(in_width, out_width)

    bias: torch.nn.Parameter

    @abstractmethod
    def add_weights(self, in_width: int, out_width: int) -> None:
        """Make the layer's parameters."""

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """See :meth:`EndsWithBias.last_biases`."""
        return (self.bias,)


class GCNLayer(LinearLayer):
    """``Â x W + b`` with ``Â = D^-1/2 (A + I) D^-1/2`` (Kipf & Welling); PyG's ``GCNConv``."""

    def add_weights(self, in_width: int, out_width: int) -> None:
        """See :meth:`LinearLayer.add_weights`."""
        self.weight = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        if self.transform_first:
            return self.aggregator(matmul(operand(x, self.compute), self.weight, self.aggregator.backend)) + self.bias
        under_way = self.aggregator.begin(_dense(x))
        late = LateWeight(self.weight, self.aggregator.backend)  # its gradient is computed while gradients travel
        return late.multiply(operand(under_way.finish(), self.compute), bias=self.bias)


class SAGELayer(LinearLayer):
    """``mean(x_j) W_neighbour + x W_root + b`` (GraphSAGE); PyG's ``SAGEConv`` with mean aggregation."""

    def add_weights(self, in_width: int, out_width: int) -> None:
        """See :meth:`LinearLayer.add_weights`."""
        self.weight_neighbour = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.weight_root = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight_neighbour)
        torch.nn.init.xavier_uniform_(self.weight_root)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        own = operand(x, self.compute)  # rounded only once for both products, if at all
        backend = self.aggregator.backend
        sent = matmul(own, self.weight_neighbour, backend) if self.transform_first else _dense(x)
        # The code up to the end runs while rows travel; its backward pass runs while gradients travel.
        under_way = self.aggregator.begin(sent)
        root = matmul(own, self.weight_root, backend, bias=self.bias)
        if self.transform_first:
            return under_way.finish() + root
        late = LateWeight(self.weight_neighbour, backend)
        return late.multiply(operand(under_way.finish(), self.compute), plus=root)


class Dense(torch.nn.Module):
    """``x W + b`` in the arithmetic ``compute``: a :class:`torch.nn.Linear` with W (F_in, F_out)."""

    def __init__(self, in_width: int, out_width: int, *, compute: Compute = "float32", backend: str = "auto") -> None:
        super().__init__()
        self.compute, self.backend = compute, backend
        self.weight = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight)

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """See :meth:`EndsWithBias.last_biases`."""
        return (self.bias,)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out)."""
        return matmul(operand(x, self.compute), self.weight, self.backend, bias=self.bias)


class GINLayer(LinearLayer):
    """``MLP((1 + eps) x + sum_j x_j)`` (Xu et al.) with two dense layers and ReLU; PyG's ``GINConv`` with ``train_eps``.

    The first dense layer commutes with the sum, so the cheaper of the two comes first.
    """

    def add_weights(self, in_width: int, out_width: int) -> None:
        """See :meth:`LinearLayer.add_weights`."""
        self.eps = torch.nn.Parameter(torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight)
        self.out = Dense(out_width, out_width, compute=self.compute, backend=self.aggregator.backend)

    def last_biases(self) -> tuple[torch.nn.Parameter, ...]:
        """See :meth:`EndsWithBias.last_biases`."""
        return self.out.last_biases()

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        backend = self.aggregator.backend
        if self.transform_first:
            own = matmul(operand(x, self.compute), self.weight, backend)
            hidden = self.aggregator(own) + (1 + self.eps) * own + self.bias
        else:
            own = _dense(x)
            under_way = self.aggregator.begin(own)
            scaled = (1 + self.eps) * own  # while rows travel
            hidden = matmul(operand(under_way.finish() + scaled, self.compute), self.weight, backend, bias=self.bias)
        return self.out(layer_activation(hidden, backend=backend))


class GCNIILayer(torch.nn.Module):
    """``y W'`` with ``y = (1 - alpha) Â x + alpha x_0`` and ``W' = (1 - beta) I + beta W``; PyG's ``GCN2Conv`` (Chen et al.).

    depth: position of this layer, from 1. beta is ``log(theta / depth + 1)``.
    """

    def __init__(
        self,
        width: int,
        aggregator: Aggregator,
        *,
        depth: int,
        alpha: float,
        theta: float,
        compute: Compute = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.alpha, self.compute = aggregator, alpha, compute
        self.beta = math.log(theta / depth + 1)
        self.weight = torch.nn.Parameter(torch.empty(width, width))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """(n, F) and x_0 (n, F) to (n, F). Collective."""
        under_way = self.aggregator.begin(x)
        initial = self.alpha * first  # while rows travel
        y = torch.add(initial, under_way.finish(), alpha=1 - self.alpha)
        near_identity = torch.eye(y.shape[1], dtype=y.dtype, device=y.device).lerp(
            self.weight, self.beta
        )  # (F, F): small beside y
        return matmul(operand(y, self.compute), near_identity, self.aggregator.backend)


def _dense(x: Features | LabelledFeatures) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError("sparse features must be transformed before they are aggregated")
    return x
