"""A trainer trains models of PyG on dictionaries by type: losses are those of one process of PyG, on any number of ranks."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, HeteroConv, SAGEConv

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)
KEYS = [key for key in DATA.edge_types if {key[0], key[2]} <= {"paper", "author"}]  # types with features
WIDTHS, EPOCHS = {"paper": 5, "author": 7}, 5
Dict = dict[Any, torch.Tensor]


class Layers(nn.Module):
    """Two ``HeteroConv``, the first of which reads features of edges. whole: whether the result is a dictionary."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        first = {
            key: GATv2Conv((WIDTHS[key[0]], WIDTHS[key[2]]), 8, add_self_loops=False, edge_dim=self.columns(key))
            for key in KEYS
        }
        self.first = HeteroConv(first)
        self.second = HeteroConv({key: SAGEConv((8, 8), 4) for key in KEYS}, "mean")

    @staticmethod
    def columns(key: Any) -> int | None:
        return DATA[key].edge_attr.shape[1] if "edge_attr" in DATA[key] else None

    def forward(self, x_dict: Dict, edge_index_dict: Dict, edge_attr_dict: Dict) -> Any:
        edges = {key: edge_index_dict[key] for key in KEYS}
        attr = {key: edge_attr_dict[key] for key in KEYS if key in edge_attr_dict}
        x = {name: rows.relu() for name, rows in self.first(x_dict, edges, edge_attr_dict=attr).items()}
        found = self.second(x, edges)
        return found if self.whole else found["paper"]


def pygs_losses(model: nn.Module) -> list[float]:
    """The losses of one process."""
    of_edges = [
        {key: DATA[key][name] for key in DATA.edge_types if name in DATA[key]} for name in ("edge_index", "edge_attr")
    ]
    optimiser, train, losses = torch.optim.Adam(model.parameters(), lr=0.05), DATA["paper"].train_mask, []
    for _ in range(EPOCHS):
        found = model(DATA.x_dict, *of_edges)
        rows = found["paper"] if isinstance(found, dict) else found
        loss = nn.functional.cross_entropy(rows[train], DATA["paper"].y[train])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("whole", [True, False])
def test_losses_are_those_of_one_process(tmp_path: Path, whole: bool) -> None:
    """tests/nn/test_models_by_type.py has other models."""
    torch.manual_seed(4)
    plain = Layers(whole=whole)
    wanted = pygs_losses(copy.deepcopy(plain))

    def program(world: World) -> list[dict[str, Any]]:
        graph = small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5")
        model = hpcgnn.distribute(copy.deepcopy(plain), graph, check=False)
        trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=EPOCHS, lr=0.05, weight_decay=0.0))
        trainer.fit()
        return trainer.records

    for records in on_threads(3, program):
        np.testing.assert_allclose([each["loss"] for each in records], wanted, rtol=1e-4)
    assert wanted[-1] < wanted[0]


class OfAuthors(Layers):
    def forward(self, x_dict: Dict, edge_index_dict: Dict, edge_attr_dict: Dict) -> Any:
        return {"author": super().forward(x_dict, edge_index_dict, edge_attr_dict)["author"]}


def test_a_model_without_rows_of_the_type_with_labels_is_refused(tmp_path: Path) -> None:
    def program(world: World) -> str:
        graph = small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5")
        model = hpcgnn.distribute(OfAuthors(whole=True), graph, check=False)
        with pytest.raises(HpcgnnError, match=r"not of shape .*, with a row for each node of type 'paper'") as error:
            hpcgnn.Trainer(model, graph)
        return str(error.value)

    first, second = on_threads(2, program)
    assert first == second


def test_labels_of_several_types_need_a_target(tmp_path: Path) -> None:
    types = tuple(replace(each, classes=4) if each.name == "author" else each for each in ARRAYS.node_types)
    arrays = replace(ARRAYS, node_types=types)

    def program(world: World) -> None:
        graph = small_graphs.on_ranks(world, arrays, tmp_path / "parts.h5")
        model = Layers(whole=True)
        with pytest.raises(HpcgnnError, match=r"has labels of paper, author: choose one by graph\.with_target"):
            hpcgnn.Trainer(hpcgnn.distribute(model, graph, check=False), graph)
        target = graph.with_target("paper")
        trained = hpcgnn.distribute(model, target, check=False)
        hpcgnn.Trainer(trained, target)
        with pytest.raises(
            HpcgnnError, match="distributed for the labels of 'paper', and this graph has those of author"
        ):
            hpcgnn.Trainer(trained, graph.with_target("author"))

    on_threads(1, program)
