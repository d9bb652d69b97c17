"""Models of PyG on dictionaries by type, as of ``HeteroData``: outputs and gradients of all ranks are those of one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, GraphConv, HeteroConv, HGTConv, SAGEConv, to_hetero

import hpcgnn
from hpcgnn.world.thread_world import on_threads

ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)
WIDTHS = {"paper": 5, "author": 7}
WIDTH = 8


class Inputs(nn.Module):
    """Rows of one width for all types: projected features, or ones for types without any."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleDict({name: nn.Linear(width, WIDTH) for name, width in WIDTHS.items()})
        self.constant = nn.ParameterDict({name: nn.Parameter(torch.randn(1, WIDTH)) for name in ("venue", "term")})

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: self.project[name](value) if name in self.project else value @ self.constant[name]
            for name, value in x.items()
        }


class OfRelations(nn.Module):
    """Two ``HeteroConv`` layers of convolutions that differ by type."""

    def __init__(self, aggr: str) -> None:
        super().__init__()
        self.inputs = Inputs()
        kinds = (lambda: SAGEConv((WIDTH, WIDTH), WIDTH), lambda: GraphConv((WIDTH, WIDTH), WIDTH),
                 lambda: GATConv((WIDTH, WIDTH), WIDTH, add_self_loops=False))  # fmt: skip
        self.layers = nn.ModuleList(
            HeteroConv({key: kinds[k % 3]() for k, key in enumerate(DATA.edge_types)}, aggr=aggr) for _ in range(2)
        )

    def forward(self, x: Any, edge_index: Any) -> torch.Tensor:
        x = self.inputs(x)
        for layer in self.layers:
            x = {name: value.relu() for name, value in layer(x, edge_index).items()}
        return x["paper"]


class WithFeaturesOfEdges(nn.Module):
    """A layer that uses the features of edges of the types that have any."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Inputs()
        dims = {key: DATA[key].edge_attr.shape[1] for key in DATA.edge_types if "edge_attr" in DATA[key]}
        self.layer = HeteroConv(
            {key: GATv2Conv((WIDTH, WIDTH), WIDTH, add_self_loops=False, edge_dim=dim) for key, dim in dims.items()}
        )

    def forward(self, x: Any, edge_index: Any, edge_attr: Any) -> torch.Tensor:
        return self.layer(self.inputs(x), {key: edge_index[key] for key in edge_attr}, edge_attr)["paper"]


class Transformed(nn.Module):
    """``to_hetero`` of a plain model."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Inputs()

        class Plain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = SAGEConv((WIDTH, WIDTH), WIDTH), SAGEConv((WIDTH, WIDTH), 4)

            def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
                return self.second(self.first(x, edge_index).relu(), edge_index)

        self.model = to_hetero(Plain(), DATA.metadata())

    def forward(self, x: Any, edge_index: Any) -> torch.Tensor:
        return self.model(self.inputs(x), edge_index)["paper"]


class Transformer(nn.Module):
    """HGT."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Inputs()
        self.layers = nn.ModuleList(HGTConv(WIDTH, WIDTH, DATA.metadata(), heads=2) for _ in range(2))

    def forward(self, x: Any, edge_index: Any) -> torch.Tensor:
        x = self.inputs(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return x["paper"]


MODELS = {
    "sum": lambda: OfRelations("sum"), "mean": lambda: OfRelations("mean"), "max": lambda: OfRelations("max"),
    "features of edges": WithFeaturesOfEdges, "to_hetero": Transformed, "hgt": Transformer,
}  # fmt: skip


def inputs_of(x: dict[str, torch.Tensor], counts: dict[str, int]) -> dict[str, torch.Tensor]:
    """Features in float64, and a column of ones for types without any."""
    ones = {name: torch.ones(count, 1, dtype=torch.float64) for name, count in counts.items()}
    return ones | {name: value.double() for name, value in x.items()}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_equal_pyg(tmp_path: Path, name: str, ranks: int) -> None:
    torch.manual_seed(5)
    plain = MODELS[name]().double()
    counts = {each: DATA[each].num_nodes for each in DATA.node_types}
    edges = {key: DATA[key].edge_index for key in DATA.edge_types}
    attr = {key: DATA[key].edge_attr.double() for key in DATA.edge_types if "edge_attr" in DATA[key]}
    others = (attr,) if name == "features of edges" else ()
    wanted = plain(inputs_of(DATA.x_dict, counts), edges, *others)
    target = torch.randn(wanted.shape, dtype=torch.float64)
    (wanted * target).sum().backward()

    def program(world: Any) -> tuple[float, dict[str, np.ndarray]]:
        graph = small_graphs.on_ranks(world, ARRAYS, tmp_path / f"{ranks}.h5")
        model = hpcgnn.distribute(copy.deepcopy(plain), graph)
        model.zero_grad()
        sizes = {each: len(graph.of_type(each, graph.original_ids)) for each in counts}
        given = ({key: value.double() for key, value in graph.edge_attr_dict.items()},) if others else ()
        mine = model(inputs_of(graph.x_dict, sizes), graph.edge_index_dict, *given)
        ids = graph.of_type("paper", graph.original_ids)
        (mine * target[ids]).sum().backward()
        error = float((mine - wanted[ids]).abs().max()) if len(ids) else 0.0
        zeros = {key: np.zeros(p.shape) for key, p in model.named_parameters()}
        return error, {key: zeros[key] if p.grad is None else p.grad.numpy() for key, p in model.named_parameters()}

    found = on_threads(ranks, program)
    assert np.max([error for error, _ in found]) < 1e-10  # Python's max would hide a NaN
    for key, parameter in plain.named_parameters():
        total = sum(gradients[key] for _, gradients in found)
        theirs = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        assert np.abs(total - theirs).max() < 1e-10, key
