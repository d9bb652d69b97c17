"""Programs for ranks: trainings that are compared with single-process PyG, or with each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import hpcgnn
from hpcgnn.exchange import Exchange
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.plan import STRATEGIES
from hpcgnn.world import World

EPOCHS, LR = 20, 0.01
# The seed of the weights. With some seeds a value is so close to ReLU's kink that float32 and float64 fall on different sides.
SEED = 1
PRECISIONS = {"float32": (torch.float32, "auto"), "float64": (torch.float64, "reference")}
CONFIGS = {
    "gcn": hpcgnn.ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.0, norm="layer"),
    "sage": hpcgnn.ModelConfig(model="sage", layers=3, hidden=12, dropout=0.0, norm="none"),
    "sage-batch-norm": hpcgnn.ModelConfig(model="sage", layers=3, hidden=12, dropout=0.0, norm="batch"),
    "gcn-mean-norm": hpcgnn.ModelConfig(model="gcn", layers=3, hidden=12, dropout=0.0, norm="mean"),
}


class Trained(NamedTuple):
    """The losses of each epoch, the gradients of the first one by PyG's names, and the (N, C) scores by original id."""

    losses: list[float]
    gradients: dict[str, np.ndarray]
    scores: np.ndarray


def run(graph: LocalGraph, model: GraphModel, epochs: int = EPOCHS, **how: Any) -> Trained:
    """Train, and gather all scores, because the graphs are tiny. how: further settings of the training."""
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, lr=LR, **how))
    losses, gradients = [], {}
    for epoch in range(epochs):
        loss, _ = trainer.step(epoch)
        losses.append(loss)
        if epoch == 0:
            found = {name: _gradient(p) for name, p in model.named_parameters()}
            import pyg_models  # which imports PyG, without which other programs here run

            gradients = {name: value.numpy() for name, value in pyg_models.to_pyg(model.config, found).items()}
    model.eval()
    with torch.no_grad():
        mine = model(trainer.task.features, trainer.task.all_labels).double().numpy()
    scores = np.zeros((graph.meta.num_nodes, mine.shape[1]))
    scores[graph.original_ids.numpy()] = mine
    return Trained(losses, gradients, graph.world.allreduce(scores))


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient; zeros for a parameter that the loss does not depend on, as a bias in front of a batch norm."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def relative(found: np.ndarray | list[float], wanted: np.ndarray | list[float]) -> float:
    """The largest difference, relative to the largest expected value."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def initial_weights(world: World, path: Path, name: str, precision: str) -> dict[str, torch.Tensor]:
    """The initial weights, which depend neither on the strategy nor on the number of ranks."""
    dtype, backend = PRECISIONS[precision]
    model = hpcgnn.build_model(CONFIGS[name], hpcgnn.load(path, world), backend=backend, dtype=dtype, seed=SEED)
    return {key: value.clone() for key, value in model.state_dict().items()}


def train(
    world: World, path: Path, name: str, strategy: str, precision: str
) -> tuple[Trained, dict[str, int], dict[str, torch.Tensor]]:
    """The results of a training, the numbers of *post* and *pre* rows of all ranks, and the initial weights."""
    dtype, backend = PRECISIONS[precision]
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(CONFIGS[name], graph, strategy=strategy, backend=backend, dtype=dtype, seed=SEED)
    plan = model.aggregator.plan
    rows = world.allreduce(np.array([plan.send_to.post.sum(), plan.send_to.pre.sum()]))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return run(graph, model), {"post": int(rows[0]), "pre": int(rows[1])}, state


def loss_error(found: list[float] | np.ndarray, wanted: list[float] | np.ndarray) -> float:
    """The largest relative difference of an epoch's losses."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float((np.abs(found - wanted) / np.abs(wanted)).max())


def gradient_error(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """The largest difference relative to the largest value of its parameter, or, where those are almost 0, of all parameters."""
    largest = max(np.abs(value).max() for value in wanted.values())
    scales = {name: np.abs(value).max() for name, value in wanted.items()}
    scaled = (
        (found[name] - value) / (scales[name] if scales[name] > 1e-4 * largest else largest)
        for name, value in wanted.items()
    )
    return float(np.abs(np.concatenate([each.ravel() for each in scaled])).max())  # NaN, if there is one


_wait = Exchange.wait


def zeroed(self: Exchange, message: Message) -> None:
    _wait(self, message)
    message.received.zero_()


def no_backward(self: Exchange, message: Message) -> None:
    (zeroed if self.is_backward else _wait)(self, message)


def swapped(self: Exchange, message: Message) -> None:
    _wait(self, message)
    received = message.received
    pieces = list(received.split(message.codec.receive_counts.tolist()))
    peers = [rank for rank, piece in enumerate(pieces) if piece.numel()]
    if len(peers) > 1:
        pieces[peers[0]], pieces[peers[1]] = pieces[peers[1]], pieces[peers[0]]
    received.copy_(torch.cat(pieces))


BROKEN = {
    "zeroed": (Exchange, "wait", zeroed),
    "no-backward": (Exchange, "wait", no_backward),
    "swapped": (Exchange, "wait", swapped),
}


@contextlib.contextmanager
def sabotage(name: str, broken: dict[str, tuple[Any, str, Any]] = BROKEN) -> Iterator[None]:
    """Inside the context, something in this process is broken, so a comparison must fail; otherwise it would prove nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*broken[name])
        yield


def unlike_built_plans(world: World, path: Path) -> list[str]:
    """The differences, on this rank, between the plans in the file and those that the ranks build together."""
    graph, found = hpcgnn.load(path, world), []
    for strategy in STRATEGIES:
        stored, built = graph.stored_plan(strategy, edges=True), graph.built_plan(strategy)
        assert stored is not None
        for name in ("local", "send", "receive", "send_to", "receive_from"):
            one, other = vars(getattr(stored, name)), vars(getattr(built, name))
            found += [f"{strategy}: {name}.{key}" for key in one if not np.array_equal(one[key], other[key])]
    return found
