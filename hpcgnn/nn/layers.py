"""Graph layers over an :class:`~hpcgnn.nn.aggregate.Aggregator`. Shapes: x (n, F_in) -> (n, F_out), n owned nodes."""

from __future__ import annotations

import torch

from hpcgnn.nn.aggregate import Aggregator, KeptAggregator
from hpcgnn.nn.linear import Features, LabelledFeatures, LateWeight, matmul, operand


def linear_first(in_width: int, out_width: int, *, needs_gradient: bool, is_sparse: bool) -> bool:
    """Whether transforming before aggregating sends fewer bytes, forward and backward together.

    Features need no gradient, unless labels were embedded in them, so aggregating them first saves the backward exchange;
    sparse features are always transformed first.
    """
    aggregate_first_width = 2 * in_width if needs_gradient else in_width
    return is_sparse or 2 * out_width < aggregate_first_width


class GCNLayer(torch.nn.Module):
    """``Â x W + b`` with ``Â = D^-1/2 (A + I) D^-1/2`` (Kipf & Welling); PyG's ``GCNConv``."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        aggregator: Aggregator | KeptAggregator,
        *,
        transform_first: bool,
        compute: str = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.transform_first, self.compute = aggregator, transform_first, compute
        self.weight = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        if self.transform_first:
            return self.aggregator(matmul(operand(x, self.compute), self.weight, self.aggregator.backend)) + self.bias
        under_way = self.aggregator.begin(_dense(x))
        late = LateWeight(self.weight, self.aggregator.backend)  # its gradient while gradients travel
        return late.multiply(operand(under_way.finish(), self.compute), bias=self.bias)


class SAGELayer(torch.nn.Module):
    """``mean(x_j) W_neighbour + x W_root + b`` (GraphSAGE); PyG's ``SAGEConv`` with mean aggregation."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        aggregator: Aggregator | KeptAggregator,
        *,
        transform_first: bool,
        compute: str = "float32",
    ) -> None:
        super().__init__()
        self.aggregator, self.transform_first, self.compute = aggregator, transform_first, compute
        self.weight_neighbour = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.weight_root = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight_neighbour)
        torch.nn.init.xavier_uniform_(self.weight_root)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        own = operand(x, self.compute)  # rounded once for both products, where it is rounded
        backend = self.aggregator.backend
        sent = matmul(own, self.weight_neighbour, backend) if self.transform_first else _dense(x)
        # From here to its end: while rows travel, and in backward while gradients do.
        under_way = self.aggregator.begin(sent)
        root = matmul(own, self.weight_root, backend, bias=self.bias)
        if self.transform_first:
            return under_way.finish() + root
        late = LateWeight(self.weight_neighbour, backend)
        return late.multiply(operand(under_way.finish(), self.compute), plus=root)


def _dense(x: Features | LabelledFeatures) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError("sparse features must be transformed before they are aggregated")
    return x
