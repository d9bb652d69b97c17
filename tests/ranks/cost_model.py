"""Programs for ranks: the bytes and rows that they send, beside which the cost model's are put."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph, load
from hpcgnn.nn import ModelConfig, build_model
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World

_COSTS = LinkCosts(dict.fromkeys(("node", "network"), 1e-8), dict.fromkeys(("node", "network"), 1e-5))


def _trainer(
    graph: LocalGraph, model: dict[str, Any], strategy: str, messages: MessageConfig, config: TrainConfig, **how: Any
) -> Trainer:
    built = build_model(ModelConfig(**model), graph, messages=Messages(graph.world, messages), strategy=strategy)
    return Trainer(built, graph, config, **how)


def sent(
    world: World, path: str, model: dict[str, Any], strategy: str, bits: int, node_aware: str = "off"
) -> list[int]:
    """The bytes and rows that this rank sends in the second training step, counted where they leave the rank."""
    graph = load(path, world)
    trainer = _trainer(graph, model, strategy, MessageConfig(bits, node_aware=node_aware), TrainConfig(epochs=2))
    trainer.step(0)
    traffic = trainer.model.messages.traffic
    before = traffic.bytes_sent.total()
    trainer.step(1)
    all_facts = {
        id(each.exchange): each.exchange for each in trainer.model.exchange_facts(np.asarray(graph.in_degrees))
    }
    rows = sum(int(each.send_counts.sum()) for each in all_facts.values() if each.id in traffic.exchanges_started)
    return [traffic.bytes_sent.total() - before, rows]


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
    """The records of a run with a policy, whose folder is ``out``."""
    messages = MessageConfig(bits, node_aware="off", message_coding=coding)
    config = TrainConfig(epochs=epochs, eval_every=epochs, checkpoint_every=epochs, policy=PolicyConfig(**policy))
    run = RunFolder(Path(out))
    _trainer(load(path, world), model, "hybrid", messages, config, run=run, measure_costs=lambda: _COSTS).fit()
    return run.records()
