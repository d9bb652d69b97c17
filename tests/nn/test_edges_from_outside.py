"""Edges that a program passes to a model: ids that are not nodes of the graph never reach a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from requires import require_module

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.nn.halo import edge_matrix

require_module("torch_geometric")


@pytest.mark.parametrize("edge", [(0, 5), (7, 0), (-1, 0), (0, -1)])
def test_a_matrix_of_edges_between_other_nodes_is_refused(edge: tuple[int, int]) -> None:
    edges = torch.tensor([[0, edge[0]], [1, edge[1]]])
    with pytest.raises(ValueError, match="index must lie in"):
        edge_matrix(edges, (5, 7), check=True)


def wrong_edges(world: World, path: Path) -> list[str]:
    """The sentences about edges of nodes that do not exist, by layers with a plan and by layers over the halo."""
    from torch_geometric.nn import GCNConv, GraphConv

    graph, said = small_graphs.on_ranks(world, small_graphs.random_multigraph(), path), []
    assert graph.x is not None
    for layer in (GCNConv(9, 4), GraphConv(9, 4)):
        model = hpcgnn.distribute(layer, graph)
        for wrong in (-1, 10**6):
            edges = graph.edge_index.clone()
            edges[0, 0] = wrong
            with pytest.raises((ValueError, IndexError)) as caught:
                model(graph.x, edges)
            said.append(str(caught.value))
    return said


def test_a_distributed_model_refuses_edges_between_other_nodes(tmp_path: Path) -> None:
    (said,) = ThreadPool(1).run(wrong_edges, tmp_path / "parts.h5")
    assert all("index" in sentence for sentence in said), said
