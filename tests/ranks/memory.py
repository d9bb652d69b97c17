"""Programs for ranks: the memory of the stand-in device that training takes."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from standin import standin

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.train.checks import needed_bytes
from hpcgnn.world import World


@dataclass
class Need:
    """Bytes of memory. needed: as predicted. taken: the maximum during training."""

    needed: int
    taken: int


def of_training(world: World, path: Path, settings: dict[str, Any], activations: str = "keep") -> Need:
    """Run two epochs, with evaluations."""
    device, config = standin(), hpcgnn.ModelConfig(**settings)
    gc.collect()  # left-over memory of another training would count
    torch.ops.standin.reset_counts()
    before = torch.ops.standin.counts()[3]
    graph = hpcgnn.load(path, world)
    needed = needed_bytes(graph, config, activations)
    graph = graph.to(device)
    messages = Messages(world, MessageConfig(), device=device)
    model = hpcgnn.build_model(config, graph, messages=messages, compute="float32", activations=activations)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=2, eval_every=1))
    for _ in range(2):
        trainer.run_epoch()
    return Need(needed, device.peak_bytes() - before)
