"""Graph layers over an :class:`~hpcgnn.nn.aggregate.Aggregator`. Shapes: x (n, F_in) -> (n, F_out), n owned nodes."""

from __future__ import annotations

import torch

from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.linear import Features, LabelledFeatures, matmul


def linear_first(in_width: int, out_width: int, *, needs_gradient: bool, is_sparse: bool) -> bool:
    """Whether transforming before aggregating sends fewer bytes, forward and backward together.

    Features need no gradient, unless labels were embedded in them, so aggregating them first saves the backward exchange;
    sparse features are always transformed first.
    """
    aggregate_first_width = 2 * in_width if needs_gradient else in_width
    return is_sparse or 2 * out_width < aggregate_first_width


class GCNLayer(torch.nn.Module):
    """``Â x W + b`` with ``Â = D^-1/2 (A + I) D^-1/2`` (Kipf & Welling); PyG's ``GCNConv``."""

    def __init__(self, in_width: int, out_width: int, aggregator: Aggregator, *, transform_first: bool) -> None:
        super().__init__()
        self.aggregator, self.transform_first = aggregator, transform_first
        self.weight = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        return _aggregate_and_transform(x, self.weight, self.aggregator, self.transform_first) + self.bias


class SAGELayer(torch.nn.Module):
    """``mean(x_j) W_neighbour + x W_root + b`` (GraphSAGE); PyG's ``SAGEConv`` with mean aggregation."""

    def __init__(self, in_width: int, out_width: int, aggregator: Aggregator, *, transform_first: bool) -> None:
        super().__init__()
        self.aggregator, self.transform_first = aggregator, transform_first
        self.weight_neighbour = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.weight_root = torch.nn.Parameter(torch.empty(in_width, out_width))
        self.bias = torch.nn.Parameter(torch.zeros(out_width))
        torch.nn.init.xavier_uniform_(self.weight_neighbour)
        torch.nn.init.xavier_uniform_(self.weight_root)

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        """(n, F_in) to (n, F_out). Collective."""
        neighbours = _aggregate_and_transform(x, self.weight_neighbour, self.aggregator, self.transform_first)
        return neighbours + matmul(x, self.weight_root, self.aggregator.backend) + self.bias


def _aggregate_and_transform(
    x: Features | LabelledFeatures, weight: torch.Tensor, aggregator: Aggregator, transform_first: bool
) -> torch.Tensor:
    if transform_first:
        return aggregator(matmul(x, weight, aggregator.backend))
    if not isinstance(x, torch.Tensor):
        raise TypeError("sparse features must be transformed before they are aggregated")
    return matmul(aggregator(x), weight)
