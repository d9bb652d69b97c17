"""Programs for ranks: stale and fresh rows that all move alike."""

from __future__ import annotations

from pathlib import Path

import torch

import hpcgnn
from hpcgnn.exchange import Messages
from hpcgnn.exchange.mailbox import STALE, StaleRowRules
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.halo import make_halo
from hpcgnn.world import World

WIDTH = 3


def differences(world: World, path: Path, kind: str, strategy: str, corrects: bool) -> list[float]:
    """Forward and backward, the largest difference that rows of the previous epoch make in an aggregation."""
    graph = hpcgnn.load(path, world)
    fresh, late = (_aggregator(graph, kind, strategy, Messages(world)) for _ in range(2))
    late.exchange.messages.kept.begin(StaleRowRules(corrects=corrects))
    found = []
    copies = late.correction.copies
    # Gradients of copies move in proportion to the number of edges.
    in_backward = 1.0 if copies is None else copies.edges()
    for there, here, proportions in ((fresh, late, 1.0), (fresh.reverse, late.reverse, in_backward)):
        here.exchange.freshness = STALE
        noise = torch.Generator().manual_seed(world.rank)
        rows = torch.randn(here.plan.local.num_cols, WIDTH, dtype=torch.float64, generator=noise)
        for epoch, move in enumerate((0.0, 1.0, 5.0)):
            here.exchange.messages.begin_epoch(epoch)
            moved = rows + move * proportions * torch.arange(1.0, WIDTH + 1)
            wanted, got = (one.finish_step(*one.start_step(moved)) for one in (there, here))
        found.append(float((wanted - got).abs().max()) if wanted.numel() else 0.0)
    late.exchange.messages.drain()
    return found


def _aggregator(graph: LocalGraph, kind: str, strategy: str, messages: Messages) -> Aggregator:
    if kind == "halo":
        return make_halo(graph, messages=messages, backend="reference")
    return make_aggregator(graph, kind, strategy, messages=messages, backend="reference", dtype=torch.float64)
