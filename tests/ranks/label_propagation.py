"""Programs for ranks: label propagation, compared with one process of PyG."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import torch
from ranks import equivalence
from ranks.equivalence import EPOCHS, PRECISIONS, Trained

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.train import tasks
from hpcgnn.train.config import LabelPropagationConfig
from hpcgnn.train.optimiser import GradientBucket
from hpcgnn.world import World

SEED = 5
BASE = hpcgnn.ModelConfig(layers=2, dropout=0.0, label_inputs=True)
CONFIGS = {
    "gcn": replace(BASE, model="gcn", hidden=16),  # with 9 features: aggregates them first
    "gcn-narrow": replace(BASE, model="gcn", hidden=3),  # transforms them first
    "sage": replace(BASE, model="sage", hidden=12, layers=3, norm="none"),
    "sage-dropout": replace(BASE, model="sage", hidden=12, dropout=0.5, input_dropout=0.3),
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


def dropout_losses(world: World, path: Path) -> list[float]:
    """The losses of a model with dropout, in double precision."""
    graph = hpcgnn.load(path, world)
    return run(graph, build(graph, "sage-dropout", "float64"), "epoch").losses


_drawn_nodes, _reduce = tasks.drawn_nodes, GradientBucket.reduce


def by_position(config: LabelPropagationConfig, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    return _drawn_nodes(config, seed, epoch, torch.arange(ids.numel()))


def by_mean_of_ranks(self: GradientBucket, scalars: list[float], count: int) -> tuple[list[float], int]:
    return _reduce(self, [scalars[0] / max(count, 1), *scalars[1:]], 1)


BROKEN = equivalence.BROKEN | {
    "drawn by position": (tasks, "drawn_nodes", by_position),
    "mean of the ranks' means": (GradientBucket, "reduce", by_mean_of_ranks),
}
sabotage = functools.partial(equivalence.sabotage, broken=BROKEN)
