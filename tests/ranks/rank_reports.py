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


def rows_of_a_step(world: World, parts: Path, out: Path, settings: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Train one epoch in float32: the rows that this rank sends to each rank in an exchange of a forward pass, which are the same
    in all of them, and the entries of L, S and R."""
    graph = hpcgnn.load(parts, world)
    messages = Messages(world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig(layers=2, hidden=8, **settings), graph, messages=messages)
    hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=1), run=RunFolder(out), stop=StopRequest()).fit()
    traffic, sent = messages.traffic, []
    for number, each in enumerate(model.aggregators):
        sent.append(each.exchange.send_counts.tolist())
        width, rest = divmod(traffic.bytes_sent[number, False], 4 * max(sum(sent[-1]), 1))
        assert rest == 0
        assert width > 0 or not any(sent[-1])
    assert all(each == sent[0] for each in sent)
    plan = model.aggregator.linear.plan
    return sent[0], [matrix.num_entries for matrix in (plan.local, plan.send, plan.receive)]
