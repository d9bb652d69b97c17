"""The time that `hpcgnn.distribute` adds to the call of a layer on one rank, compared with the native model of the same layers.

    python tools/bench_distribute.py PARTS.h5 [--rounds 200]

PARTS.h5 must have one part. Both models run the layers of GCN and SAGE forward and backward, in turns. The output is the
medians, and their difference for each call of a layer, which includes PyG's own bookkeeping.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table
from torch_geometric.nn import GCNConv, SAGEConv

import hpcgnn
from hpcgnn.world import MpiWorld

WIDTH, LAYERS = 64, 3
KINDS = {"gcn": GCNConv, "sage": SAGEConv}


class Stack(torch.nn.Module):
    """PyG's layers with ReLU between them."""

    def __init__(self, layer: type[torch.nn.Module], widths: list[int]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layer(*pair) for pair in pairwise(widths))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """(n, F) to (n, C)."""
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        return self.layers[-1](x, edge_index)


def main() -> None:
    """Measure both models in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    graph = hpcgnn.load(arguments.parts, MpiWorld())
    x = torch.randn(graph.num_nodes, WIDTH)
    graph.features, graph.meta = x, graph.meta.__class__(**vars(graph.meta) | {"num_features": WIDTH, "x_nnz": None})
    table = Table("layers", "pass", "native, ms", "distributed, ms", "added to a layer call, ms")
    for kind, layer in KINDS.items():
        config = hpcgnn.ModelConfig(model=kind, layers=LAYERS, hidden=WIDTH, dropout=0.0, norm="none")
        native = hpcgnn.build_model(config, graph)
        stack = Stack(layer, [WIDTH] * LAYERS + [graph.meta.num_classes])
        ours = hpcgnn.distribute(stack, graph)
        for name, gradients in (("forward", False), ("forward and backward", True)):
            runs = [partial(call, native, gradients, x), partial(call, ours, gradients, x, graph.edge_index)]
            table.add_row(kind, name, *medians(runs, arguments.rounds))
    Console().print(table)


def call(model: torch.nn.Module, gradients: bool, *inputs: torch.Tensor) -> None:
    """Run one forward and backward pass."""
    with torch.set_grad_enabled(gradients):
        scores = model(*inputs)
    if gradients:
        scores.sum().backward()


def medians(runs: list[Callable[[], None]], rounds: int) -> list[str]:
    """The median milliseconds of each model, and the median of the second one's additional time for each layer."""
    seconds: list[list[float]] = [[], []]
    for number in range(rounds + 5):
        for run, found in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            if number >= 5:
                found.append(time.perf_counter() - start)
    added = statistics.median(theirs - ours for ours, theirs in zip(*seconds, strict=True)) / LAYERS
    return [f"{1000 * value:.3f}" for value in (*map(statistics.median, seconds), added)]


if __name__ == "__main__":
    main()
