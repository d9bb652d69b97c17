"""Random draws of a distributed model's own code."""

from __future__ import annotations

import numpy as np
import torch

import hpcgnn
from hpcgnn.comm import World


class Noise(torch.nn.Module):
    """Random numbers for each node, whatever the arguments."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Draw (n, 1)."""
        return torch.rand(x.size(0), 1)


def draws(world: World, path: str) -> tuple[np.ndarray, float]:
    """The numbers of this rank's nodes after the same seed on all ranks, and the number that the generator gives afterwards."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.distribute(Noise(), graph, check=False)
    torch.manual_seed(1)
    return model(graph.x, graph.edge_index)[:, 0].numpy(), float(torch.rand(()))
