"""Programs for ranks: sums of gradients that start while the backward pass runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.train.optimiser import GradientBucket, by_completion
from hpcgnn.world import World

COLUMNS = 1 << 14  # 64 KiB, as much as a sum of its own needs


class Chain(nn.Module):
    """Two layers of two rows each. Rank 1 has no gradient of the last one's second row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ParameterList([torch.ones(COLUMNS), torch.ones(COLUMNS)]) for _ in range(2)])

    def loss(self, world: World) -> Tensor:
        (a, b), (c, d) = self.layers
        below = (a + b) * (world.rank + 1)
        return (below * c).sum() + (below * (d.detach() if world.rank == 1 else d)).sum()


def sums_start_early(world: World) -> tuple[list[str], list[list[float]]]:
    """The events of this rank's backward pass, in their order, and the ends of the gradients after it."""
    model, events = Chain(), list[str]()
    bucket, apart = GradientBucket(world, by_completion(model.named_parameters()), 1), world.apart()
    assert apart is not None
    start = apart.start_allreduce

    def started(*arguments: Any) -> Any:
        events.append("sum")
        return start(*arguments)

    apart.start_allreduce = started  # type: ignore[method-assign]
    model.layers[0][0].register_hook(lambda _: events.append("first layer"))
    try:
        for _ in range(2):
            events.clear()
            model.zero_grad()
            with bucket.during_backward():
                model.loss(world).backward()
            events.append("end")
            assert bucket.reduce([1.0], 1) == ([world.size], world.size)
    finally:
        del apart.start_allreduce
    return events, [parameter.grad[[0, -1]].tolist() for parameter in model.parameters()]


def a_gradient_that_is_made_twice(world: World) -> None:
    """Check that the sum of a part of a gradient is never taken for that of the whole."""
    model = Chain()
    bucket = GradientBucket(world, by_completion(model.named_parameters()), 1)
    loss = sum(each.sum() for each in model.parameters())
    with bucket.during_backward():
        loss.backward(retain_graph=True)
        with pytest.raises(HpcgnnError, match="twice in one step"):
            loss.backward()
    bucket.reduce([1.0], 1)


def weights_with_and_without_overlap(world: World, parts: Path, name: str) -> list[dict[str, Tensor]]:
    """The weights after three steps, with sums that start early, and with sums after the backward pass."""
    found, graph = [], hpcgnn.load(parts, world)
    for overlap in (True, False):
        messages = Messages(world, MessageConfig(bits=8, overlap=overlap))
        model = hpcgnn.build_model(hpcgnn.ModelConfig(name, layers=3, hidden=192), graph, messages=messages)
        made = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(eval_every=100))
        assert len(made.bucket._groups) > 1
        for epoch in range(3):
            made.step(epoch)
        found.append(made.model.state_dict())
    return found
