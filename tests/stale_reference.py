"""Training in one process in which rows of other parts are from earlier epochs, with dense matrices and without code of the
package.

The ages of rows are an argument: distributed training reports them. Computes in double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from requires import require_module
from small_graphs import Arrays

from hpcgnn.nn import ModelConfig

Ages = list[dict[str, int]]  # for each epoch, the age of each exchange's rows
DTYPE = torch.float64


class Memory:
    """The rows that one layer's exchanges sent in each epoch, and the moving averages of received rows.

    diagonals: (N,) Dl and Dr, for the correction of stale rows; None: no correction. part: (N,) part of each node.
    """

    def __init__(
        self, layer: int, ages: Ages, decay: float | None, diagonals: tuple[torch.Tensor, ...] | None, part: np.ndarray
    ) -> None:
        self.names = (f"layer {layer + 1}'s boundary rows", f"layer {layer + 1}'s gradients")
        self.ages, self.decay, self.diagonals, self.part = ages, decay, diagonals, part
        self.sent: dict[tuple[int, int], torch.Tensor] = {}
        self.average: dict[int, torch.Tensor] = {}
        self.epoch = 0

    def aggregated(self, direction: int, inside: torch.Tensor, cut: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``inside`` times ``rows``, plus ``cut`` times the rows that the other parts have in this epoch."""
        used = self.received(direction, rows)
        z = inside @ rows + cut @ used
        if self.diagonals is None or self.decay is not None:
            return z
        left, right = self.diagonals if direction == 0 else self.diagonals[::-1]
        return (
            z + correction(inside / left[:, None], cut / left[:, None], right, self.part, rows - used) * left[:, None]
        )

    def received(self, direction: int, rows: torch.Tensor) -> torch.Tensor:
        """The rows that other parts have, without a correction."""
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


def correction(
    inside: torch.Tensor, cut: torch.Tensor, right: torch.Tensor, part: np.ndarray, moved: torch.Tensor
) -> torch.Tensor:
    """(N, F) correction of stale rows, from the change ``moved`` (N, F) of the sum over each node's neighbours in its own part.

    A node's own neighbours count, and one more neighbour that changed as the mean over all boundary nodes.
    """
    z = torch.zeros_like(moved)
    for own in (torch.from_numpy(part == each) for each in np.unique(part)):
        boundary = own & (cut != 0).any(1)
        here, there = inside[boundary].sum(1), cut[boundary].sum(1)
        change, one = inside[boundary] @ moved, right[own].mean()
        mean = (there @ change) / (there @ here) if bool(there @ here > 0) else torch.zeros_like(change[:1])
        z[boundary] = there[:, None] * (change + one * mean) / (here + one)[:, None]
    return z


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, inside: torch.Tensor, cut: torch.Tensor, memory: Memory) -> torch.Tensor:
        ctx.given = inside, cut, memory
        return memory.aggregated(0, inside, cut, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        inside, cut, memory = ctx.given
        return memory.aggregated(1, inside.T, cut.T, gradients[0]), None, None, None


def aggregation_matrix(graph: Arrays, model: str) -> torch.Tensor:
    """(N, N) matrix by which GCNConv, or SAGEConv with mean aggregation, multiplies."""
    edges, nodes = torch.from_numpy(graph.edge_index), graph.num_nodes
    weight = torch.ones(edges.shape[1], dtype=DTYPE)
    if model == "gcn":
        gcn_norm = require_module("torch_geometric.nn.conv.gcn_conv").gcn_norm
        edges, weight = gcn_norm(edges, weight, nodes, dtype=DTYPE)
    matrix = torch.zeros(nodes, nodes, dtype=DTYPE)
    matrix.index_put_((edges[1], edges[0]), weight, accumulate=True)
    return matrix if model == "gcn" else matrix / matrix.sum(1, keepdim=True).clamp(min=1)


def diagonals_of(graph: Arrays, model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) Dl and Dr of :func:`aggregation_matrix`."""
    edges = torch.from_numpy(graph.edge_index)
    if model == "gcn":
        loops = edges[0] == edges[1]
        scale = (torch.bincount(edges[1][~loops], minlength=graph.num_nodes).to(DTYPE) + 1) ** -0.5
        return scale, scale
    degree = torch.bincount(edges[1], minlength=graph.num_nodes).to(DTYPE)
    return 1 / degree.clamp(min=1), torch.ones_like(degree)


def train(
    graph: Arrays,
    part: np.ndarray,
    config: ModelConfig,
    state: dict[str, torch.Tensor],
    transform_first: list[bool],
    ages: Ages,
    lr: float,
    decay: float | None = None,
    *,
    corrects: bool = False,
    shared: np.ndarray | None = None,
) -> list[float]:
    """The losses of ``len(ages)`` epochs. part: (N,) part of each node. state: weights by hpcgnn's names. decay: of smoothing.
    shared: (N,) machine of each node, if rows are stale only between machines.
    """
    matrix = aggregation_matrix(graph, config.model)
    shared = part if shared is None else shared
    same = torch.from_numpy(shared[:, None] == shared[None, :])
    inside, cut = matrix * same, matrix * ~same
    diagonals = diagonals_of(graph, config.model) if corrects else None
    memories = [Memory(layer, ages, decay, diagonals, part) for layer in range(config.layers)]
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
