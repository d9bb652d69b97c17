"""Programs for ranks: label propagation, compared with one process of PyG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from ranks import equivalence
from ranks.equivalence import EPOCHS, PRECISIONS, Trained

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.train.config import LabelPropagationConfig
from hpcgnn.world import World

SEED = 5
BASE = hpcgnn.ModelConfig(layers=2, dropout=0.0, label_inputs=True)
CONFIGS = {
    "gcn": replace(BASE, model="gcn", hidden=16),  # with 9 features: aggregates them first
    "gcn-narrow": replace(BASE, model="gcn", hidden=3),  # transforms them first
    "sage": replace(BASE, model="sage", hidden=12, layers=3, norm="none"),
}
DRAWS = {"epoch": LabelPropagationConfig(0.62), "once": LabelPropagationConfig(0.4, "once")}


def build(graph: LocalGraph, name: str, precision: str) -> GraphModel:
    dtype, backend = PRECISIONS[precision]
    return hpcgnn.build_model(CONFIGS[name], graph, backend=backend, dtype=dtype, seed=SEED)


def run(graph: LocalGraph, model: GraphModel, draw: str) -> Trained:
    return equivalence.run(graph, model, EPOCHS, labels=DRAWS[draw])


def initial_weights(world: World, path: Path, name: str, precision: str) -> dict[str, torch.Tensor]:
    """The initial weights, which do not depend on the number of ranks."""
    model = build(hpcgnn.load(path, world), name, precision)
    return {key: value.clone() for key, value in model.state_dict().items()}


def train(world: World, path: Path, name: str, draw: str, precision: str) -> tuple[Trained, dict[str, torch.Tensor]]:
    """The results of a training, and the initial weights."""
    graph = hpcgnn.load(path, world)
    model = build(graph, name, precision)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return run(graph, model, draw), state
