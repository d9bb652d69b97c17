"""Programs for ranks that share nodes according to ``HPCGNN_RANKS_PER_NODE``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpcgnn
from hpcgnn.comm import MessageConfig, Messages, MpiWorld, World
from hpcgnn.comm.mailbox import Message
from hpcgnn.comm.placement import RANKS_PER_NODE
from hpcgnn.errors import StalledError
from hpcgnn.nn import make_aggregator
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.node_aggregate import NodeAggregator

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
    """In both directions, the largest difference between the squared weights that policies get and the effect of a row on the
    sums of all ranks, if this row is 1 and all others are 0.
    """
    graph = hpcgnn.load(path, world)
    there = make_aggregator(graph, "mean", strategy, backend="reference", dtype=torch.float64)
    return max(_unlike(world, one) for one in (there, there.reverse))


def _unlike(world: World, aggregator: Aggregator) -> float:
    exchange, told = aggregator.exchange, aggregator.square_weights()
    sent = world.allgather(np.array([told.size]))[:, 0]
    zeros = torch.zeros(aggregator.plan.local.num_cols, 1, dtype=torch.float64)
    worst = 0.0
    for sender in range(world.size):
        for row in range(int(sent[sender])):
            start = exchange.start

            def one_row(
                rows: torch.Tensor,
                given: object = None,
                start: Any = start,
                here: bool = sender == world.rank,
                row: int = row,
            ) -> Message:
                rows.zero_()
                if here:
                    rows[row] = 1
                return start(rows)

            exchange.start = one_row  # type: ignore[method-assign]
            z = aggregator.finish_step(*aggregator.start_step(zeros))
            exchange.start = start  # type: ignore[method-assign]
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
    os.environ[RANKS_PER_NODE] = str(per_node)
    try:
        again = MpiWorld()  # a new world, which has not determined its nodes yet
        shared = bool(again.on_my_node().size == per_node)
        return losses(again, path, "on", settings), shared
    finally:
        del os.environ[RANKS_PER_NODE]


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


def meet_alone(world: World) -> str:
    """The sentence of rank 0 if the other rank does not come to a meeting."""
    impatient = MpiWorld(timeout_seconds=0.5)
    memory = impatient.on_my_node().share(64)
    memory.meet()
    said = ""
    if world.rank == 0:
        try:
            memory.meet()
        except StalledError as error:
            said = str(error)
    world.allreduce(np.zeros(1))
    return said


def handed_around(world: World) -> list[int]:
    """The values that each rank reads when every rank repeatedly writes its number and meets the others in between."""
    node = MpiWorld().on_my_node()
    memory = node.share(8 * node.size)
    values, found = memory.values.view(np.int64), []
    for turn in range(200):
        values[node.rank] = turn * node.size + node.rank
        memory.meet()
        found.append(int(values.sum()))
        memory.meet()
    return found
