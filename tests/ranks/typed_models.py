"""Programs for ranks: models on graphs whose nodes have types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import small_graphs
import torch

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world import World

ARRAYS = small_graphs.with_types()


def typed_graph(world: World, folder: Path, arrays: small_graphs.Arrays = ARRAYS) -> LocalGraph:
    """The graph in random parts, of which the last of three or more has no node."""
    return small_graphs.on_ranks(world, arrays, folder / f"typed-{world.size}.h5")


def train(world: World, folder: Path, **settings: Any) -> tuple[list[float], np.ndarray, np.ndarray]:
    """The losses of six epochs; and, from the last step, the gradients of the biases of venues and of terms, and the sums of the
    gradients of the learned rows of these nodes."""
    graph = typed_graph(world, folder).with_target("paper")
    config = hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed="venue,term", dropout=0.0)
    model = hpcgnn.build_model(config, graph, seed=1)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=6, **settings))
    trainer.fit()
    layer, kinds = model.input_layer, graph.nodes_by_type.type[: graph.num_nodes]
    assert layer is not None
    rows = (
        torch.zeros(0, 8) if layer.embedding.grad is None else layer.embedding.grad
    )  # None on a rank without such nodes
    sums = [rows[kinds[kinds >= 2] == kind].sum(0).double().numpy() for kind in (2, 3)]
    total = world.allreduce(np.stack(sums))
    return [record["loss"] for record in trainer.records], layer.bias.grad[2:].numpy(), total
