"""A program for ranks: the same training of a few epochs, repeated several times."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import pytest
import torch

import hpcgnn
from hpcgnn.comm import Exchange, MessageConfig, Messages, World
from hpcgnn.comm.mailbox import Message

_start, _wait = Exchange.start, Exchange.wait
EPOCHS = 4


def run(graph: hpcgnn.LocalGraph, threads: int, pauses: random.Random | None) -> tuple[str, list[float], bytes]:
    """A hash of all bytes that this rank sent, of the losses and of the weights, with pauses before each start and wait."""
    sent = hashlib.sha256()

    def pause() -> None:
        if pauses:
            time.sleep(pauses.uniform(0, 0.01))

    def start(self: Exchange, rows: torch.Tensor, *level: torch.Tensor | None) -> Message:
        pause()
        message = _start(self, rows, *level)
        sent.update(message.sent.numpy())
        return message

    def wait(self: Exchange, message: Message) -> None:
        pause()
        _wait(self, message)

    torch.set_num_threads(threads)
    config = hpcgnn.ModelConfig(layers=2, hidden=64, dropout=0.5)
    model = hpcgnn.build_model(config, graph, messages=Messages(graph.world, MessageConfig(2)), seed=3)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=EPOCHS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "start", start)
        patch.setattr(Exchange, "wait", wait)
        losses = [trainer.step(epoch)[0] for epoch in range(EPOCHS)]
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return sent.hexdigest(), losses, weights


def differing(world: World, path: Path, threads: int) -> list[str]:
    """The runs that differ from the first one on this rank."""
    graph, found = hpcgnn.load(path, world), []
    first = run(graph, threads, None)
    for name, pauses in (("again", None), ("with pauses", random.Random(world.rank))):
        if run(graph, threads, pauses) != first:
            found.append(name)
    return found
