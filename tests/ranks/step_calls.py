"""A program for ranks: the Python calls that one aggregation makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.world import World

Calls = list[tuple[str, str]]  # file and function of each


def of_layer_2(world: World, path: Path, bits: int) -> list[Calls]:
    """The calls of rank 0 in the forward and in the backward aggregation of layer 2, in an epoch after others."""
    graph = hpcgnn.load(path, world)
    messages = Messages(world, MessageConfig(bits=bits))
    model = hpcgnn.build_model(hpcgnn.ModelConfig("sage", layers=3, hidden=16), graph, messages=messages)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(eval_every=100))
    for epoch in range(3):
        trainer.step(epoch)
    directions = model.aggregators[1], model.aggregators[1].reverse
    found: list[Calls] = [[], []]
    for aggregator, calls in zip(directions, found, strict=True):
        _record(world, aggregator, calls)
    trainer.step(3)
    return found


def _record(world: World, aggregator: Aggregator, calls: Calls) -> None:
    start, finish = aggregator.start_step, aggregator.finish_step

    def finished(x: Any, message: Any, *plus: Any) -> Any:
        world.allreduce(message.received.new_zeros(1))
        while not world.test(message.pending):  # so that the number of tests in the wait does not depend on other ranks
            pass
        return _profiled(calls, finish, x, message, *plus)

    aggregator.start_step = lambda x, **how: _profiled(calls, start, x, **how)  # type: ignore[method-assign]
    aggregator.finish_step = finished  # type: ignore[method-assign]


def _profiled(calls: Calls, function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        return function(*arguments, **how)
    finally:
        sys.setprofile(None)
