"""The bytes that ranks send in the epochs of a training with policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.comm import MessageConfig, Messages, World
from hpcgnn.graph import load
from hpcgnn.nn import ModelConfig, build_model
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.trainer import Trainer

_COSTS = LinkCosts(dict.fromkeys(("node", "network"), 1e-8), dict.fromkeys(("node", "network"), 1e-5))


def trained(
    world: World,
    path: str,
    model: dict[str, Any],
    policy: dict[str, Any],
    epochs: int,
    out: str,
    bits: int,
    coding: str,
) -> list[dict[str, Any]]:
    """The records of a run, whose folder is ``out``."""
    graph = load(path, world)
    messages = Messages(world, MessageConfig(bits, node_aware="off", message_coding=coding))
    built = build_model(ModelConfig(**model), graph, messages=messages, strategy="hybrid")
    config = TrainConfig(epochs=epochs, eval_every=epochs, checkpoint_every=epochs, policy=PolicyConfig(**policy))
    trainer = Trainer(built, graph, config, run=RunFolder(Path(out)), measure_costs=lambda: _COSTS)
    trainer.fit()
    return RunFolder(Path(out)).records()
