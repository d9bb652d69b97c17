"""Training in one process where rows of other parts are those of an epoch before, with dense matrices and none of our code.

Which epoch's rows were used is given: what distributed training says of itself. So is how often a part sends what has a node's
row in it, which goes into the mean by which stale rows are corrected. Double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from small_graphs import Arrays
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hpcgnn.nn import ModelConfig

Ages = list[dict[str, int]]  # of each epoch: exchange -> how old its rows are
DTYPE = torch.float64


class Memory:
    """What one layer's exchanges sent in each epoch, and the moving averages of what was received.

    means: for both directions (N, N), what gives each node the mean of what its part sends; None: nothing is corrected.
    """

    def __init__(self, layer: int, ages: Ages, decay: float | None, means: tuple[torch.Tensor, ...] | None) -> None:
        self.names = (f"layer {layer + 1}'s boundary rows", f"layer {layer + 1}'s gradients")
        self.ages, self.decay, self.means = ages, decay, means
        self.sent: dict[tuple[int, int], torch.Tensor] = {}
        self.average: dict[int, torch.Tensor] = {}
        self.epoch = 0

    def added(self, direction: int, cut: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``cut`` times what the other parts have of ``rows``, in this epoch."""
        used = self.received(direction, rows)
        z = cut @ used
        if self.means is not None and self.decay is None:
            z = z + cut.sum(1, keepdim=True) * (self.means[direction] @ (rows - used))
        return z

    def received(self, direction: int, rows: torch.Tensor) -> torch.Tensor:
        """What they have without a correction."""
        age = self.ages[self.epoch].get(self.names[direction], 0)
        self.sent[direction, self.epoch] = rows
        used = self.sent[direction, self.epoch - age]
        if self.decay is None:
            return used
        if age == 0 or direction not in self.average:
            self.average[direction] = used
        else:
            self.average[direction] = self.decay * self.average[direction] + (1 - self.decay) * used
        return self.average[direction]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, inside: torch.Tensor, cut: torch.Tensor, memory: Memory) -> torch.Tensor:
        ctx.given = inside, cut, memory
        return inside @ x + memory.added(0, cut, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        inside, cut, memory = ctx.given
        return inside.T @ gradients[0] + memory.added(1, cut.T, gradients[0]), None, None, None


def aggregation_matrix(graph: Arrays, model: str) -> torch.Tensor:
    """(N, N): what GCNConv or SAGEConv (mean) multiplies with."""
    edges, nodes = torch.from_numpy(graph.edge_index), graph.num_nodes
    weight = torch.ones(edges.shape[1], dtype=DTYPE)
    if model == "gcn":
        edges, weight = gcn_norm(edges, weight, nodes, dtype=DTYPE)
    matrix = torch.zeros(nodes, nodes, dtype=DTYPE)
    matrix.index_put_((edges[1], edges[0]), weight, accumulate=True)
    return matrix if model == "gcn" else matrix / matrix.sum(1, keepdim=True).clamp(min=1)


def means_of_parts(graph: Arrays, model: str, part: np.ndarray, sent: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, N) of features and of gradients: a row has the mean of what its part sends, a scaled row as often as it is sent.

    sent: (2, N) how often, in both directions.
    """
    edges = torch.from_numpy(graph.edge_index)
    degree = torch.bincount(edges[1], minlength=graph.num_nodes).to(DTYPE)
    if model == "gcn":
        loops = edges[0] == edges[1]
        degree = torch.bincount(edges[1][~loops], minlength=graph.num_nodes).to(DTYPE) + 1
    diagonals = [degree**-0.5] * 2 if model == "gcn" else [torch.ones_like(degree), 1 / degree.clamp(min=1)]
    found = []
    for count, diagonal in zip(torch.from_numpy(sent).to(DTYPE), diagonals, strict=True):
        shares = torch.from_numpy(part[:, None] == part[None, :]) * (count * diagonal)
        found.append(shares / shares.sum(1, keepdim=True).clamp(min=1e-30))
    return found[0], found[1]


def train(
    graph: Arrays,
    part: np.ndarray,
    config: ModelConfig,
    state: dict[str, torch.Tensor],
    transform_first: list[bool],
    ages: Ages,
    lr: float,
    decay: float | None = None,
    sent: np.ndarray | None = None,
) -> list[float]:
    """Losses of ``len(ages)`` epochs. part: (N,) of each node. state: weights by hpcgnn's names. decay: of smoothing. sent: see
    :func:`means_of_parts`; None: stale rows are used as they are."""
    matrix = aggregation_matrix(graph, config.model)
    same = torch.from_numpy(part[:, None] == part[None, :])
    inside, cut = matrix * same, matrix * ~same
    means = None if sent is None else means_of_parts(graph, config.model, part, sent)
    memories = [Memory(layer, ages, decay, means) for layer in range(config.layers)]
    weights = {name: value.clone().to(DTYPE).requires_grad_() for name, value in state.items()}
    x, y, mask = (
        torch.from_numpy(graph.x).to(DTYPE),
        torch.from_numpy(graph.y),
        torch.from_numpy(graph.masks["train_mask"]),
    )
    optimiser = torch.optim.Adam(weights.values(), lr=lr)
    losses = []
    for epoch in range(len(ages)):
        for memory in memories:
            memory.epoch = epoch
        optimiser.zero_grad()
        h = x
        for layer, memory in enumerate(memories):
            h = _layer(h, layer, weights, (inside, cut, memory), transform_first[layer])
            h = h.relu() if layer < config.layers - 1 else h
        loss = torch.nn.functional.cross_entropy(h[mask], y[mask])
        loss.backward()
        losses.append(loss.item())
        optimiser.step()
    return losses


def _layer(
    h: torch.Tensor, layer: int, weights: dict[str, torch.Tensor], how: tuple[Any, ...], transform_first: bool
) -> torch.Tensor:
    prefix = f"layers.{layer}."
    is_sage = prefix + "weight_root" in weights
    weight = weights[prefix + ("weight_neighbour" if is_sage else "weight")]
    z = _Aggregate.apply(h @ weight, *how) if transform_first else _Aggregate.apply(h, *how) @ weight
    return z + weights[prefix + "bias"] + (h @ weights[prefix + "weight_root"] if is_sage else 0)
