"""Programs for ranks: training with stale rows, at made-up times."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

import hpcgnn
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.world import World

FEATURES = "layer 1's boundary rows"
STRATEGIES = ("hybrid", "pre", "post")
EPOCHS, LR = 14, 0.02
MODELS = {
    "gcn": hpcgnn.ModelConfig(model="gcn", layers=3, hidden=12, dropout=0.0, norm="none"),
    "sage": hpcgnn.ModelConfig(model="sage", layers=3, hidden=7, dropout=0.0, norm="none"),
}
POLICIES = {
    "off": PolicyConfig(),
    "pipeline": PolicyConfig(staleness="pipeline"),
    "uncorrected": PolicyConfig(staleness="pipeline", stale_correction="none"),
    "smoothed": PolicyConfig(staleness="pipeline", smoothing="both", smoothing_decay=0.7),
    "sylvie": PolicyConfig(staleness="sylvie", loss_window=2, descent_rule="printed"),
    "pipeqs": PolicyConfig(staleness="pipeqs", drift_threshold=2.0, most_stale_epochs=3),
    "pipeqs-late": PolicyConfig(staleness="pipeqs", drift_threshold=2.0, most_stale_epochs=3, bypass="late"),
    "sancus": PolicyConfig(staleness="sancus", drift_threshold=2.0, most_stale_epochs=3),
    "pipeqs-strict": PolicyConfig(staleness="pipeqs", drift_threshold=0.0, bypass="late"),
}


def made_up_times(layers: int) -> dict[int, dict[str, Any]]:
    """Replace the clock: it returns random seconds, and messages are late at random."""
    chance = random.Random(3)
    names = [f"layer {layer + 1}'s {what}" for layer in range(layers) for what in ("boundary rows", "gradients")]
    return {
        epoch: {"seconds": chance.uniform(0.1, 2), "late": [name for name in names if chance.random() < 0.6]}
        for epoch in range(EPOCHS)
    }


def train(world: World, path: Path, model: str, strategy: str, policy: str) -> tuple[list[float], list, list, dict]:
    """The losses, the ages of rows in each epoch, the layers that transform first, and the initial weights."""
    graph = hpcgnn.load(path, world)
    config = MODELS[model]
    network = hpcgnn.build_model(config, graph, strategy=strategy, seed=1, dtype=torch.float64, backend="reference")
    state = {name: value.clone() for name, value in network.state_dict().items()}
    trainer = hpcgnn.Trainer(
        network,
        graph,
        hpcgnn.TrainConfig(lr=LR, epochs=EPOCHS, eval_every=3, policy=POLICIES[policy]),
        clock=Clock(made_up_times(config.layers)),
    )
    losses, ages = [], []
    for _ in range(EPOCHS):
        record = trainer.run_epoch()
        losses.append(record["loss"])
        ages.append(record.get("stale_epochs", {}))
    network.messages.drain()
    return losses, ages, [layer.transform_first for layer in network.layers], state
