"""Labels as inputs: an embedding is added to the features of nodes whose label is given (SuperGCN §3.3.2, UniMP)."""

from __future__ import annotations

import torch

from hpcgnn.kernels import Csr, spmm
from hpcgnn.nn.linear import Features, LabelledFeatures


class LabelEmbedding(torch.nn.Module):
    """``x + Y E``: ``E[y]`` is added to the features of a node with label ``y``; for multi-label nodes, the sum over their
    labels.

    Shapes: x (n, F); Y (n, C), with ones where a node's label is an input; E (C, F).
    """

    def __init__(self, num_classes: int, width: int, backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        self.weight = torch.nn.Parameter(torch.empty(num_classes, width))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Features, labels: Csr | None) -> Features | LabelledFeatures:
        """``x + Y E``. Sparse features stay sparse: the sum is left to the product that reads them."""
        if labels is None:
            raise ValueError(
                "this model takes labels as inputs: call model(x, labels), with an empty (n, C) Csr for none"
            )
        if isinstance(x, Csr):
            return LabelledFeatures(x, labels, self.weight)
        return x + spmm(labels, self.weight, backend=self.backend)


def label_matrix(y: torch.Tensor, nodes: torch.Tensor, num_classes: int) -> Csr:
    """(n, C) matrix with ones at the labels of the nodes selected by ``nodes`` (n,) bool. y: (n,) int64 or (n, C) uint8."""
    if y.dim() == 1:
        lengths, indices = nodes.long(), y[nodes]
    else:
        given = (y != 0) & nodes[:, None]
        lengths, indices = given.sum(1), given.nonzero()[:, 1]
    indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    return Csr(indptr, indices, num_classes)  # checked, because a program may have changed the tensor y
