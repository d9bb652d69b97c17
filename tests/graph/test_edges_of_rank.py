"""The edges of one rank by original ids, with their weights, types and features, and data of a program's own."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from torch import nn

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world.thread_world import on_threads

RANKS, WIDTH = 3, 9
ARRAYS = small_graphs.with_typed_edges(small_graphs.random_multigraph(seed=6, weighted=True), columns=2)
NODES, EDGES = ARRAYS.num_nodes, torch.from_numpy(ARRAYS.edge_index)


def on_parts(tmp_path: Path, order: str, use: Callable[[LocalGraph], Any]) -> list[Any]:
    """``use(graph)`` of each rank, of which the last has no node."""

    def program(world: Any) -> Any:
        return use(small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5").reordered(order))

    return on_threads(RANKS, program)


class Attended(nn.Module):
    """A layer with weights and one with features of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GraphConv(WIDTH, 8), pyg.GATv2Conv(8, 4, edge_dim=2)

    def forward(self, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> torch.Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_attr)


def test_features_of_edges_from_a_table_of_ones_own(tmp_path: Path) -> None:
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
    for ids, scores in on_parts(tmp_path, "degree", use):
        torch.testing.assert_close(scores, wanted[ids])


def test_names_that_pyg_has(tmp_path: Path) -> None:
    def use(graph: LocalGraph) -> int:
        for mask in ("train_mask", "val_mask", "test_mask"):
            assert getattr(graph, mask) is graph.masks[mask]
            with pytest.raises(AttributeError):  # trainers would not see it
                setattr(graph, mask, graph.masks[mask])
        assert (graph.num_features, graph.num_classes) == (WIDTH, graph.meta.num_classes)
        assert graph.num_edges == graph.edge_index.shape[1] == graph.edge_weight.numel()
        for wrong, near in (
            ("train_maks", "train_mask"),
            ("num_node_features", "num_features"),
            ("edge_weights", "edge_weight"),
        ):
            with pytest.raises(AttributeError, match=f"^a graph has no attribute '{wrong}'; did you mean {near}.$"):
                getattr(graph, wrong)
        with pytest.raises(AttributeError, match=r"^a graph has no attribute 'zzz'$"):
            graph.zzz  # noqa: B018
        assert not hasattr(object.__new__(LocalGraph), "__setstate__")
        for other in (copy.copy(graph), copy.deepcopy(graph), replace(graph, masks={})):
            assert other.num_edges == graph.num_edges
        assert not hasattr(other, "train_mask")
        with pytest.raises(AttributeError, match=r"parts\.h5 has no train_mask: convert the graph with --split"):
            other.train_mask  # noqa: B018
        other.original_ids = None
        with pytest.raises(
            AttributeError, match="'NoneType' object has no attribute 'numel'"
        ):  # of the property itself
            other.num_nodes  # noqa: B018
        with pytest.raises(HpcgnnError, match="a LocalGraph belongs to one rank"):
            pickle.dumps(graph)
        return graph.num_edges

    assert sum(on_parts(tmp_path, "degree", use)) == EDGES.shape[1]


def test_fewer_edges_keep_their_values(tmp_path: Path) -> None:
    def use(graph: LocalGraph) -> bool:
        def subset(of: LocalGraph, least: float) -> tuple[np.ndarray, LocalGraph]:
            kept = of.edge_weight.numpy() > least
            return torch.from_numpy(kept), of.with_edges(kept)

        kept, fewer = subset(graph, 0.7)
        still, fewest = subset(fewer, 1.2)
        names = ("edge_weight", "edge_type", "edge_attr")
        return all(
            torch.equal(getattr(fewer, name), getattr(graph, name)[kept])
            and torch.equal(getattr(fewest, name), getattr(graph, name)[kept][still])
            for name in names
        )

    assert all(on_parts(tmp_path, "none", use))


def test_a_file_that_was_replaced_is_refused_on_all_ranks(tmp_path: Path) -> None:
    other = small_graphs.in_parts(tmp_path / "other.h5", ARRAYS, RANKS)

    def use(graph: LocalGraph) -> str:
        graph.world.allreduce(np.zeros(1))  # all ranks wait for each other
        if graph.world.rank == 0:
            shutil.copy(other, graph.path)
        graph.world.allreduce(np.zeros(1))  # all ranks wait for each other
        with pytest.raises(hpcgnn.HpcgnnError, match="is another file by now: load the graph again") as error:
            _ = graph.edge_attr
        return str(error.value)

    assert len({*on_parts(tmp_path, "none", use)}) == 1
