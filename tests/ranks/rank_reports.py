"""Programs for ranks: a training with a run folder, with counters where bytes leave and arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World

EPOCHS = 5


def bytes_of_training(world: World, parts: Path, out: Path, bits: int, policy: dict[str, Any]) -> tuple[int, int]:
    """Train with evaluations in between; return the numbers of bytes of training that this rank sent and received."""
    torch.manual_seed(0)
    graph = hpcgnn.load(parts, world)
    messages = Messages(world, MessageConfig(bits=bits, node_aware="off"))
    model = hpcgnn.build_model(hpcgnn.ModelConfig("sage", hidden=16, layers=2), graph, messages=messages)
    moved, bind = [0, 0], messages.transport.bind

    def watched(sent, received, *others, **named):
        start = bind(sent, received, *others, **named)

        def counted():
            if messages.current_pass.is_training:
                moved[0] += sent.numel()
                moved[1] += received.numel()
            return start()

        return counted

    messages.transport.bind = watched
    config = hpcgnn.TrainConfig(epochs=EPOCHS, eval_every=2, policy=PolicyConfig(**policy))
    hpcgnn.Trainer(model, graph, config, run=RunFolder(out), stop=StopRequest()).fit()
    return moved[0], moved[1]
