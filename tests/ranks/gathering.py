"""Programs for ranks: :func:`hpcgnn.gather` of values whose right place is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import small_graphs
import torch

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_order import NodeOrder
from hpcgnn.train.gather import to_first
from hpcgnn.world import World

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


def values(nodes: int, width: int | None, dtype: torch.dtype) -> torch.Tensor:
    """The values that rank 0 must receive: a different one for each node, some of which a float32 cannot hold."""
    shape = (nodes,) if width is None else (nodes, width)
    count = int(np.prod(shape))
    numbers = torch.arange(count, dtype=torch.float64).reshape(shape) * 1.0000001 - 7
    return (numbers * (2.0**40 + 1) if dtype == torch.int64 else numbers).to(dtype)


def graph_of(world: World, folder: str) -> LocalGraph:
    arrays = small_graphs.random_multigraph()
    return small_graphs.on_ranks(world, arrays, Path(folder) / f"parts-{world.size}.h5")


def everything(world: World, folder: str) -> None:
    """Gather values of several types, widths and array kinds, and check the order of nodes."""
    graph = graph_of(world, folder)
    reversed_order = torch.arange(graph.num_nodes - 1, -1, -1)
    for given in (graph, graph.in_order(NodeOrder("test", reversed_order))):
        for width in (None, 1, 5, 0):
            for dtype in TYPES:
                expected = values(graph.meta.num_nodes, width, dtype)
                mine = expected[given.original_ids]
                check(world, hpcgnn.gather(mine, given), expected)
                if dtype != torch.bfloat16:
                    check(world, hpcgnn.gather(np.asarray(mine), given), expected)
    wide = values(graph.meta.num_nodes, 6, torch.float32)
    check(world, hpcgnn.gather(wide[graph.original_ids][:, ::2], graph), wide[:, ::2])  # not contiguous
    backwards = np.asarray(wide[graph.original_ids])[:, ::-1].astype(">f4")
    check(world, hpcgnn.gather(backwards, graph), wide.flip(1))
    check(world, hpcgnn.gather(wide[graph.original_ids].requires_grad_(), graph), wide)


def check(world: World, found: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert (found is None) == (world.rank > 0)
    if found is not None:
        assert found.dtype == expected.dtype
        assert not found.requires_grad
        assert torch.equal(found, expected)


def in_windows(world: World, folder: str) -> None:
    """Gather in windows of one row, of some rows, and of more rows than exist; the last window is smaller."""
    graph = graph_of(world, folder)
    nodes = graph.meta.num_nodes
    expected = values(nodes, 3, torch.uint8)
    for window_bytes in (1, 11, 7 * 11, 10**6):
        result = torch.zeros_like(expected) if world.rank == 0 else None
        to_first(world, graph.original_ids, expected[graph.original_ids], result, nodes, window_bytes)
        if result is not None:
            assert torch.equal(result, expected)


def refused(world: World, folder: str) -> list[str]:
    """The sentences of ranks for each of :func:`wrong`, where only the last rank's argument is wrong."""
    graph = graph_of(world, folder)
    good = torch.zeros(graph.num_nodes, 2)
    told = []
    for bad in wrong(graph):
        try:
            hpcgnn.gather(bad if world.rank == world.size - 1 else good, graph)
        except hpcgnn.HpcgnnError as error:
            told.append(f"{error}" if error.agreed else f"on this rank alone: {error}")
    check(world, hpcgnn.gather(good, graph), torch.zeros(graph.meta.num_nodes, 2))  # all ranks are still in step
    return told


def wrong(graph: LocalGraph) -> list[Any]:
    nodes = graph.num_nodes
    return [
        torch.zeros(nodes + 1, 2),
        torch.zeros(nodes, 2, 2),
        torch.zeros(()),
        torch.zeros(nodes, 3),
        torch.zeros(nodes),
        torch.zeros(nodes, 2, dtype=torch.float64),
        torch.zeros(nodes, 2).to_sparse(),
        np.full((nodes, 2), "a"),
        [[0.0, 0.0]] * nodes,
        None,
    ]
