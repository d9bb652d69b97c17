"""Programs for ranks that share nodes according to ``HPCGNN_RANKS_PER_NODE``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import hpcgnn
from hpcgnn.base.errors import StalledError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.exchange import Step
from hpcgnn.exchange.mailbox import Message
from hpcgnn.nn import make_aggregator
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.node_aware import NodeAggregator
from hpcgnn.world import MpiWorld, World, waiting
from hpcgnn.world.placement import RANKS_PER_NODE

WIDTH = 3


def rows_that_travel(world: World, path: Path, strategy: str, made_for: int = 1) -> dict[str, Any]:
    """(P, P) rows from rank to rank, and the class of the aggregator, where parts were made for nodes with this many ranks."""
    graph = replace(hpcgnn.load(path, world), ranks_per_node=made_for)
    aggregator = make_aggregator(graph, "sum", strategy)
    return {
        "sent": world.allgather(aggregator.exchange.send_counts),
        "received": world.allgather(aggregator.exchange.receive_counts),
        "is_node_aware": isinstance(aggregator, NodeAggregator),
    }


def effects(world: World, path: Path, strategy: str) -> float:
    """The larger of the errors of weights in both directions."""
    graph = hpcgnn.load(path, world)
    there = make_aggregator(graph, "mean", strategy, backend="reference", dtype=torch.float64)
    return max(weights_error(world, one) for one in (there, there.reverse))


def weights_error(world: World, aggregator: Aggregator) -> float:
    """The largest difference, on this rank, between a row's square weight and the squares that it adds to all sums as a 1."""
    exchange, told = aggregator.exchange, aggregator.square_weights()
    counts, bound = world.allgather(np.array([told.size]))[:, 0], exchange.step
    everyones = [(rank, number) for rank, count in enumerate(counts) for number in range(int(count))]
    zeros, worst = torch.zeros(aggregator.plan.local.num_cols, 1, dtype=torch.float64), 0.0

    def step_with_one_row(width: int, dtype: torch.dtype, source: torch.Tensor | None) -> Step:
        step = bound(width, dtype)

        def start(given: object = None, again: object = None) -> Message:
            step.rows.zero_()
            if sender == world.rank:
                step.rows[row] = 1
            return Step.start(step)

        step.start = start  # type: ignore[method-assign]
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "step", step_with_one_row)
        for sender, row in everyones:
            z = aggregator.finish_step(*aggregator.start_step(zeros))
            found = float(world.allreduce((z**2).sum()[None])[0])
            if sender == world.rank:
                worst = max(worst, abs(found - told[row]))
    return worst


def degrees(world: World, path: Path, strategy: str) -> bool:
    """Return whether senders and receivers have the same in-degrees for their rows, and all of them belong to existing nodes."""
    graph = hpcgnn.load(path, world)
    aggregator = make_aggregator(graph, "mean", strategy)
    sent, received = aggregator.row_degrees(graph.in_degrees)
    told, _ = world.alltoallv(sent, aggregator.exchange.send_counts)
    everyone = set(np.concatenate([world.allgather(np.array([d]))[:, 0] for d in _padded(world, graph.in_degrees)]))
    return np.array_equal(told, received) and set(received.tolist()) <= everyone


def _padded(world: World, values: np.ndarray) -> np.ndarray:
    longest = int(world.allreduce(np.array([values.size]), "max")[0])
    return np.concatenate((values, np.zeros(longest - values.size, values.dtype)))


def losses(world: World, path: Path, node_aware: str, settings: dict[str, Any]) -> list[float]:
    """The losses of a few epochs of a training with these settings."""
    graph = hpcgnn.load(path, world)
    config = hpcgnn.ModelConfig(
        **{"model": "gcn", "layers": 2, "hidden": 16, "dropout": 0.3} | settings.get("model", {})
    )
    messages = Messages(world, MessageConfig(node_aware=node_aware, **settings.get("messages", {})))
    model = hpcgnn.build_model(config, graph, messages=messages, seed=1, backend=settings.get("backend", "auto"))
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=6, lr=0.01, **settings.get("train", {})))
    return [trainer.run_epoch()["loss"] for _ in range(6)]


def on_nodes_of(world: World, per_node: int, path: Path, settings: dict[str, Any]) -> tuple[list[float], bool]:
    """:func:`losses` on nodes with this many ranks of this host, and whether ranks read each other's memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RANKS_PER_NODE, str(per_node))
        again = MpiWorld()  # a new world, which has not determined its nodes yet
        shared = bool(again.on_my_node().size == per_node)
        return losses(again, path, "on", settings), shared


def sabotaged(world: World, path: Path, what: str) -> float:
    """The difference of an aggregation without some step from the right one."""
    graph = hpcgnn.load(path, world)
    aggregator = make_aggregator(graph, "sum", "hybrid", backend="reference", dtype=torch.float64)
    assert isinstance(aggregator, NodeAggregator)
    x = torch.arange(1.0, graph.num_nodes * WIDTH + 1, dtype=torch.float64).view(-1, WIDTH)
    wanted = aggregator(x)
    links = aggregator.links
    matrix = getattr(links, what)
    object.__setattr__(links, what, matrix.with_weight(torch.zeros(matrix.num_entries, dtype=torch.float64)))
    off = (aggregator(x) - wanted).abs().flatten()
    return float(world.allreduce(torch.cat((off, torch.zeros(1, dtype=torch.float64))).max()[None], "max")[0])


def meet_alone(world: World) -> None:
    """Check the sentences of rank 0 if the other rank does not come to a meeting."""
    impatient = MpiWorld(timeout_seconds=0.5)
    memory = impatient.on_my_node().share(64)
    memory.meet()
    if world.rank == 0:
        with (
            mock.patch.object(waiting, "SAY_SECONDS", 0.1),
            mock.patch.object(waiting, "_LOG") as log,
            pytest.raises(StalledError, match="waited 0 s for its rank 1: a peer or a link has stopped"),
        ):
            memory.meet()
        ((level, text, *values), _) = log.log.call_args
        assert (level, (text % tuple(values)).partition(" has ")[2]) == (30, "waited for 0 s for its rank 1")
        log.log.assert_called_once()
    world.allreduce(np.zeros(1))


def handed_around(world: World) -> None:
    """Check the values that each rank reads when every rank repeatedly writes its number and meets the others in between."""
    node = MpiWorld().on_my_node()
    memory = node.share(8 * node.size)
    values, found = memory.values.view(np.int64), []
    for turn in range(200):
        values[node.rank] = turn * node.size + node.rank
        memory.meet()
        found.append(int(values.sum()))
        memory.meet()
    assert found == [turn * node.size**2 + sum(range(node.size)) for turn in range(200)]
