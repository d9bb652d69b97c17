"""The bytes and rows that ranks send in a training step, counted where they leave the rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.comm import MessageConfig, Messages, World
from hpcgnn.graph import load
from hpcgnn.nn import ModelConfig, build_model
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.trainer import Trainer


def sent(
    world: World, path: str, model: dict[str, Any], strategy: str, bits: int, node_aware: str = "off"
) -> list[int]:
    """Bytes and rows that this rank sends in the second training step, as a list."""
    graph = load(path, world)
    messages = Messages(world, MessageConfig(bits, node_aware=node_aware))
    built = build_model(ModelConfig(**model), graph, messages=messages, strategy=strategy)
    trainer = Trainer(built, graph, TrainConfig(epochs=2))
    trainer.step(0)
    before = messages.traffic.bytes_sent.total()
    trainer.step(1)
    channels = {id(each.exchange): each.exchange for each in built.channels(np.asarray(graph.in_degrees))}
    started = messages.traffic.exchanges_started
    rows = sum(int(each.send_counts.sum()) for each in channels.values() if each.id in started)
    return [messages.traffic.bytes_sent.total() - before, rows]
