"""Random draws of a distributed model's own code."""

from __future__ import annotations

import numpy as np
import torch

import hpcgnn
from hpcgnn.world import World


class Noise(torch.nn.Module):
    """Random numbers for each node, whatever the arguments. common: one that belongs to no row."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Draw (n, 1)."""
        self.common = float(torch.rand(1)) + float(torch.nn.functional.dropout(torch.ones(64), 0.5).sum())
        return torch.rand(x.size(0), 1)


def draws(world: World, path: str) -> tuple[np.ndarray, list[float]]:
    """The numbers of this rank's nodes after the same seed on all ranks, and those that belong to no node: in two calls, and what
    the generator gives afterwards.
    """
    graph = hpcgnn.load(path, world)
    model = hpcgnn.distribute(Noise(), graph, check=False)
    torch.manual_seed(1)
    drawn, common = model(graph.x, graph.edge_index)[:, 0].numpy(), model.common
    model(graph.x, graph.edge_index)
    return drawn, [common, model.common, float(torch.rand(()))]
