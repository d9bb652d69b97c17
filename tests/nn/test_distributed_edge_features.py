"""``distribute`` with PyG's convolutions that take features of edges, on the graph's own ``edge_attr``: scores and gradients are
those of one process of PyG on 1 to 4 ranks. SplineConv needs pyg-lib, without which PyG itself does not make it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from rank_pool import ThreadPool
from torch import nn

import hpcgnn
from hpcgnn.world import World

WIDTH, COLUMNS, HIDDEN, CLASSES = 9, 3, 6, 4
ARRAYS = small_graphs.with_typed_edges(small_graphs.random_multigraph(seed=8), columns=COLUMNS)
TOLERANCE = 1e-10


def mlp(width: int, result: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, result))


CONVOLUTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "GATConv": lambda i, o: pyg.GATConv(i, o, heads=2, concat=False, edge_dim=COLUMNS),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False, edge_dim=COLUMNS, fill_value="max"),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, edge_dim=COLUMNS, beta=True),
    "GINEConv": lambda i, o: pyg.GINEConv(mlp(i, o), train_eps=True, edge_dim=COLUMNS),
    "NNConv": lambda i, o: pyg.NNConv(i, o, mlp(COLUMNS, i * o), aggr="mean"),
    "CGConv": lambda i, o: nn.Sequential(pyg.CGConv(i, COLUMNS), nn.Linear(i, o)),
    "GENConv": lambda i, o: pyg.GENConv(i, o, edge_dim=COLUMNS, learn_t=True),
    "PDNConv": lambda i, o: pyg.PDNConv(i, o, edge_dim=COLUMNS, hidden_channels=4),
    "GMMConv": lambda i, o: pyg.GMMConv(i, o, dim=COLUMNS, kernel_size=2),
    "GeneralConv": lambda i, o: pyg.GeneralConv(i, o, in_edge_channels=COLUMNS, attention=True, heads=2),
    "ResGatedGraphConv": lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=COLUMNS),
    "PNAConv": lambda i, o: pyg.PNAConv(i, o, ["mean", "max"], ["identity"], torch.tensor([5, 9, 2]), edge_dim=COLUMNS),
}


class Two(nn.Module):
    """Two layers that read the features of edges."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(WIDTH, HIDDEN), make(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            convolution, *others = layer if type(layer) is nn.Sequential else [layer]
            x = convolution(x, edge_index, edge_attr)
            for each in others:
                x = each(x)
            if layer is self.first:
                x = x.relu()
        return x


def outcome(
    model: nn.Module, given: tuple[torch.Tensor, ...], factor: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Scores, and the gradients of the sum of ``factor`` times them; GATConv uses no features where there is no edge."""
    scores = model(*given)
    (scores * factor).sum().backward()
    return scores.detach(), [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]


def of_rank(world: World, folder: Path, plain: nn.Module, factor: torch.Tensor, moved: int) -> tuple[Any, ...]:
    """This rank's ids and scores, and its part of the gradients. moved: features of edges are those of the edges before."""
    graph = small_graphs.on_ranks(world, ARRAYS, folder / f"{world.size}.h5")
    model = hpcgnn.distribute(copy.deepcopy(plain), graph)
    given = graph.x.double(), graph.edge_index, graph.edge_attr.double().roll(moved, 0)
    return graph.original_ids, *outcome(model, given, factor[graph.original_ids])


def difference(folder: Path, name: str, ranks: int, moved: int = 0) -> float:
    """The largest difference of scores and of gradients, relative to the largest of each."""
    torch.manual_seed(4)
    plain, factor = Two(CONVOLUTIONS[name]).double(), torch.randn(ARRAYS.num_nodes, CLASSES).double()
    arrays = (torch.from_numpy(each) for each in (ARRAYS.x, ARRAYS.edge_index, ARRAYS.edge_attr))
    x, edge_index, attr = arrays
    scores, gradients = outcome(copy.deepcopy(plain), (x.double(), edge_index, attr.double()), factor)
    found = ThreadPool(ranks).run(of_rank, folder, plain, factor, moved)
    error = max(float((mine - scores[ids]).abs().max()) for ids, mine, _ in found if len(ids)) / float(
        scores.abs().max()
    )
    sums = [sum(parts) for parts in zip(*(each for _, _, each in found), strict=True)]
    largest = max(float(each.abs().max()) for each in gradients)
    return max(error, *(float((a - b).abs().max()) / largest for a, b in zip(sums, gradients, strict=True)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_equal_themselves(tmp_path, name, ranks):
    assert difference(tmp_path, name, ranks) < TOLERANCE


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_features_of_other_edges_are_noticed(tmp_path, name):
    assert difference(tmp_path, name, 2, moved=1) > 1e4 * TOLERANCE
