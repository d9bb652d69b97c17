"""The edges of one rank by original ids, and their weights: a program attaches data of its own to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from torch import nn

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world.thread_world import on_threads

RANKS, WIDTH = 3, 9
ARRAYS = small_graphs.random_multigraph(seed=6, weighted=True)
NODES, EDGES = ARRAYS.num_nodes, torch.from_numpy(ARRAYS.edge_index)


def on_parts(tmp_path: Path, order: str, use: Callable[[LocalGraph], Any]) -> list[Any]:
    """``use(graph)`` of each rank, of which the last has no node."""

    def program(world: Any) -> Any:
        return use(small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5").reordered(order))

    return on_threads(RANKS, program)


@pytest.mark.parametrize("order", ["none", "degree"])
def test_all_ranks_together_have_all_edges_by_original_ids_with_their_weights(tmp_path: Path, order: str) -> None:
    def use(graph: LocalGraph) -> list[tuple[int, int, int, float]]:
        sources, destinations = graph.original_edge_index
        ids = torch.cat((graph.original_ids, graph.halo_ids))
        assert torch.equal(ids[graph.edge_index], graph.original_edge_index)
        assert graph.edge_weight.dtype == torch.float32
        lists = (each.tolist() for each in (sources, destinations, graph.edge_ids, graph.edge_weight))
        return list(zip(*lists, strict=True))

    found = [edge for edges in on_parts(tmp_path, order, use) for edge in edges]
    weights = torch.from_numpy(ARRAYS.weight).tolist()
    wanted = [(s, d, s * NODES + d, weight) for s, d, weight in zip(*EDGES.tolist(), weights, strict=True)]
    assert sorted(found) == sorted(wanted)


class Attended(nn.Module):
    """A layer with weights and one with features of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GraphConv(WIDTH, 8), pyg.GATv2Conv(8, 4, edge_dim=2)

    def forward(self, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> torch.Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_attr)


@pytest.mark.parametrize("order", ["none", "degree"])
def test_features_of_edges_from_a_table_of_ones_own(tmp_path: Path, order: str) -> None:
    plain = Attended().double()
    keys = torch.unique(EDGES[0] * NODES + EDGES[1])  # the user's table, sorted by key
    table = torch.randn(keys.numel(), 2, dtype=torch.float64)

    def attributes(ids: torch.Tensor) -> torch.Tensor:
        return table[torch.searchsorted(keys, ids)]

    def use(graph: LocalGraph) -> tuple[torch.Tensor, torch.Tensor]:
        model = hpcgnn.distribute(copy.deepcopy(plain), graph)
        given = graph.x.double(), graph.edge_index, graph.edge_weight.double(), attributes(graph.edge_ids)
        return graph.original_ids, model(*given).detach()

    weight = torch.from_numpy(ARRAYS.weight).double()
    wanted = plain(torch.from_numpy(ARRAYS.x).double(), EDGES, weight, attributes(EDGES[0] * NODES + EDGES[1])).detach()
    for ids, scores in on_parts(tmp_path, order, use):
        torch.testing.assert_close(scores, wanted[ids])


def test_fewer_edges_keep_their_weights(tmp_path: Path) -> None:
    def use(graph: LocalGraph) -> bool:
        kept = graph.edge_weight.numpy() > 0.7
        return torch.equal(graph.with_edges(kept).edge_weight, graph.edge_weight[torch.from_numpy(kept)])

    assert all(on_parts(tmp_path, "none", use))
