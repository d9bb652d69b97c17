"""Programs for ranks: label propagation, compared with one process of PyG."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyg_models
import pytest
import torch

import hpcgnn
from hpcgnn.comm import Exchange, World
from hpcgnn.comm.mailbox import Message
from hpcgnn.graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.train import checkpoint, label_propagation, predict
from hpcgnn.train.gradients import GradientBucket
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.task_config import LabelPropagationConfig

EPOCHS, LR, SEED = 20, 0.01, 5
PRECISIONS = {"float32": (torch.float32, "auto"), "float64": (torch.float64, "reference")}
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


def run(graph: LocalGraph, model: GraphModel, draw: str) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """The losses, the first gradients by PyG's names, and all scores by original id (gathered, because the graphs are tiny)."""
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=EPOCHS, lr=LR, labels=DRAWS[draw]))
    losses, gradients = [], {}
    for epoch in range(EPOCHS):
        losses.append(trainer.step(epoch)[0])
        if epoch == 0:
            found = {name: p.grad.clone() for name, p in model.named_parameters()}
            gradients = {name: value.numpy() for name, value in pyg_models.to_pyg(model.config, found).items()}
    model.eval()
    with torch.no_grad():
        mine = model(trainer.task.features, trainer.task.label_inputs.evaluation).double().numpy()
    scores = np.zeros((graph.meta.num_nodes, mine.shape[1]))
    scores[graph.original_ids.numpy()] = mine
    return losses, gradients, graph.world.allreduce(scores)


def initial_weights(world: World, path: Path, name: str, precision: str) -> dict[str, torch.Tensor]:
    """The initial weights, which do not depend on the number of ranks."""
    model = build(hpcgnn.load(path, world), name, precision)
    return {key: value.clone() for key, value in model.state_dict().items()}


def train(world: World, path: Path, name: str, draw: str, precision: str) -> tuple:
    """The losses, the first gradients, all scores, and the initial weights."""
    graph = hpcgnn.load(path, world)
    model = build(graph, name, precision)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return run(graph, model, draw), state


def dropout_losses(world: World, path: Path) -> list[float]:
    """The losses of a model with dropout, in double precision."""
    graph = hpcgnn.load(path, world)
    return run(graph, build(graph, "sage-dropout", "float64"), "epoch")[0]


def ranks_with_training_nodes(world: World, path: Path) -> int:
    """The number of ranks with training nodes."""
    counts = world.allgather(np.array([int(hpcgnn.load(path, world).masks["train_mask"].sum())]))
    return int((counts > 0).sum())


_drawn_nodes = label_propagation.drawn_nodes  # the original function, before a sabotage


@contextlib.contextmanager
def sabotage(name: str) -> Iterator[None]:
    """Inside the context, something in this process is broken, so a comparison must fail; otherwise it would prove nothing."""
    wait, reduce = Exchange.wait, GradientBucket.reduce

    def no_backward(self: Exchange, message: Message) -> None:
        wait(self, message)
        if self.is_backward:
            message.received.zero_()

    def by_position(config: LabelPropagationConfig, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
        return _drawn_nodes(config, seed, epoch, torch.arange(ids.numel()))

    def by_mean_of_ranks(self: GradientBucket, scalars: list[float], count: int) -> tuple[list[float], int]:
        return reduce(self, [scalars[0] / max(count, 1), *scalars[1:]], 1)

    broken = {
        "no-backward": (Exchange, "wait", no_backward),
        "drawn by position": (label_propagation, "drawn_nodes", by_position),
        "mean of the ranks' means": (GradientBucket, "reduce", by_mean_of_ranks),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*broken[name])
        yield


def prediction_equals_evaluation(world: World, path: Path, folder: Path) -> bool:
    """Return whether the scores from a checkpoint are, bit for bit, those that the trainer evaluates."""
    graph = hpcgnn.load(path, world)
    model = build(graph, "sage-dropout", "float32")
    run_folder = RunFolder(folder)
    if world.rank == 0:
        run_folder.prepare(resume=False)
    config = hpcgnn.TrainConfig(epochs=3, lr=LR, labels=DRAWS["epoch"])
    trainer = hpcgnn.Trainer(model, graph, config, run=run_folder)
    trainer.fit()
    model.eval()
    with torch.no_grad():
        wanted = model(trainer.task.features, trainer.task.label_inputs.evaluation)
    content = checkpoint.read(world, checkpoint.folder(run_folder.path) / checkpoint.LAST, None)
    same = torch.equal(predict.predict(graph, content), wanted)
    return bool(world.allreduce(np.array([same], dtype=np.int64), "min")[0])
