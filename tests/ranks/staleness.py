"""Run under mpirun: train with stale rows, and compare with one process that is told how old they were; prints JSON.

usage: staleness.py WORKFOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import small_graphs
import stale_reference
import torch

import hpcgnn
from hpcgnn.comm import MpiWorld
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig

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
    "smoothed": PolicyConfig(staleness="pipeline", smoothing="both", smoothing_decay=0.7),
    "sylvie": PolicyConfig(staleness="sylvie", loss_window=2),
    "pipeqs": PolicyConfig(staleness="pipeqs", drift_threshold=2.0, most_stale_epochs=3),
    "pipeqs-strict": PolicyConfig(staleness="pipeqs", drift_threshold=0.0),
}


def made_up_times(layers: int) -> dict[int, dict[str, Any]]:
    """What the clock is made to say: any seconds, and messages that are late at random."""
    chance = random.Random(3)
    names = {
        "late_features": [f"layer {layer + 1}'s boundary rows" for layer in range(layers)],
        "late_gradients": [f"layer {layer + 1}'s gradients" for layer in range(layers)],
    }
    return {
        epoch: {"seconds": chance.uniform(0.1, 2)}
        | {name: [one for one in all_names if chance.random() < 0.6] for name, all_names in names.items()}
        for epoch in range(EPOCHS)
    }


def run(
    graph: hpcgnn.LocalGraph, model: str, strategy: str, policy: PolicyConfig
) -> tuple[list[float], list, list, dict]:
    """Losses, ages of each epoch, which layers transform first, and the weights at the start."""
    config = MODELS[model]
    network = hpcgnn.build_model(config, graph, strategy=strategy, seed=1, dtype=torch.float64, backend="reference")
    state = {name: value.clone() for name, value in network.state_dict().items()}
    trainer = hpcgnn.Trainer(
        network,
        graph,
        hpcgnn.TrainConfig(lr=LR, epochs=EPOCHS, eval_every=3, policy=policy),
        clock=Clock(made_up_times(config.layers)),
    )
    losses, ages = [], []
    for _ in range(EPOCHS):
        record = trainer.run_epoch()
        losses.append(record["loss"])
        ages.append(record.get("stale_epochs", {}))
    network.messages.drain()
    return losses, ages, [layer.transform_first for layer in network.layers], state


def main() -> None:
    world = MpiWorld(timeout_seconds=120)
    arrays = small_graphs.random_multigraph()
    part = small_graphs.random_parts(arrays.num_nodes, world.size)
    path = Path(sys.argv[1]) / f"stale-{world.size}.h5"
    if world.rank == 0:
        small_graphs.write_parts(path, arrays, part, world.size)
    world.allreduce(np.zeros(1))  # the file is there
    graph, report = hpcgnn.load(path, world), {}
    for model, config in MODELS.items():
        for name, policy in POLICIES.items():
            for strategy in STRATEGIES if name == "pipeline" else STRATEGIES[:1]:
                losses, ages, first, state = run(graph, model, strategy, policy)
                decay = policy.smoothing_decay if policy.smoothing != "none" else None
                wanted = stale_reference.train(arrays, part, config, state, first, ages, LR, decay)
                fresh = stale_reference.train(arrays, part, config, state, first, [{}] * EPOCHS, LR)
                report[f"{model}/{strategy}/{name}"] = {
                    "error": float(np.abs(np.subtract(losses, wanted)).max()),
                    "from_fresh": float(np.abs(np.subtract(losses, fresh)).max()),
                    "oldest": [max(epoch.values(), default=0) for epoch in ages],
                    # the features are the same in each epoch, and so need not be sent
                    "ages": sorted({age for epoch in ages for what, age in epoch.items() if what != FEATURES}),
                }
    if world.rank == 0:
        print(json.dumps(report))


main()
