"""Layers of PyG on dictionaries of ``HeteroData``: outputs and gradients of P ranks equal those on one.
Rows of a type travel once, few bits come near, and what cannot be right is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from requires import EVERYTHING
from torch import nn

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.exchange import MessageConfig
from hpcgnn.pyg.bridge import Bridge
from hpcgnn.world.thread_world import on_threads

ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)
WIDTHS = {"paper": 5, "author": 7, "venue": 1, "term": 3}
HIDDEN = 6
Dict = dict[Any, torch.Tensor]


class Typed(nn.Module):
    """Two layers on dictionaries, after an embedding of the terms, which have no features."""

    def __init__(self, first: nn.Module, second: nn.Module, embedded: str = "term", *, attr: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.embedded, self.attr = first, second, embedded, attr
        self.embedding = nn.Embedding(9, 3)

    def forward(self, x_dict: Dict, edge_index_dict: Dict, edge_attr_dict: Dict) -> Dict:
        named = {"edge_attr_dict": edge_attr_dict} if self.attr else {}
        x_dict = {name: self.embedding(x) if name == self.embedded else x for name, x in x_dict.items()}
        x_dict = self.first(x_dict, edge_index_dict, **named)
        x_dict = {name: x.flatten(1)[:, :HIDDEN].relu() for name, x in x_dict.items()}
        return self.second(x_dict, edge_index_dict, **named)


def hetero(make: Callable[..., nn.Module], aggr: str | None, *, attr: bool = False) -> Typed:
    """Two ``HeteroConv``, of the layers that ``make(key, widths, has_features)`` makes."""
    has = set(DATA.edge_attr_dict) if attr else set()
    first, second = (
        pyg.HeteroConv({key: make(key, (of[key[0]], of[key[2]]), key in has) for key in DATA.edge_types}, how)
        for of, how in ((WIDTHS, aggr), (dict.fromkeys(WIDTHS, HIDDEN), "sum"))
    )
    return Typed(first, second, attr=attr)


class Pair(nn.Module):
    """Two layers and a norm over nodes, for ``to_hetero``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = pyg.SAGEConv((5, 5), HIDDEN), pyg.GraphNorm(HIDDEN)
        self.second = pyg.GATv2Conv((HIDDEN, HIDDEN), HIDDEN, add_self_loops=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class Transformed(nn.Module):
    """``to_hetero`` after a layer that gives all types the same width."""

    def __init__(self, aggr: str) -> None:
        super().__init__()
        self.same = pyg.HeteroDictLinear(WIDTHS, 5)
        self.model = pyg.to_hetero(Pair(), DATA.metadata(), aggr=aggr)

    def forward(self, x_dict: Dict, edge_index_dict: Dict, **_: Any) -> Dict:
        return self.model(self.same(x_dict), edge_index_dict)


def with_features(key: Any, widths: tuple[int, int], has: bool) -> nn.Module:
    """A layer that uses the features of the edges of this type, if they have any."""
    if not has:
        return pyg.SAGEConv(widths, HIDDEN)
    columns = DATA[key].edge_attr.shape[1]
    if key[1] == "about":
        return pyg.GATConv(widths, HIDDEN, edge_dim=columns, add_self_loops=False)
    if widths[0] == widths[1]:
        return pyg.GINEConv(nn.Linear(widths[1], HIDDEN), edge_dim=columns)
    return pyg.TransformerConv(widths, HIDDEN, edge_dim=columns)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "SAGE, sum": lambda: hetero(lambda _, widths, __: pyg.SAGEConv(widths, HIDDEN), "sum"),
    "SAGE of maxima, mean": lambda: hetero(lambda _, widths, __: pyg.SAGEConv(widths, HIDDEN, aggr="max"), "mean"),
    "GAT, max": lambda: hetero(
        lambda key, widths, _: pyg.GATConv(widths, 3, heads=2, add_self_loops=key[0] == key[2]), "max"
    ),
    "GATv2, cat": lambda: hetero(lambda _, widths, __: pyg.GATv2Conv(widths, HIDDEN, add_self_loops=False), "cat"),
    "GraphConv, none": lambda: hetero(lambda _, widths, __: pyg.GraphConv(widths, HIDDEN), None),
    "GCN and SAGE": lambda: hetero(
        lambda key, widths, _: pyg.GCNConv(widths[0], HIDDEN) if key[0] == key[2] else pyg.SAGEConv(widths, HIDDEN),
        "sum",
    ),
    "features of edges": lambda: hetero(with_features, "sum", attr=True),
    "HGT": lambda: Typed(*(pyg.HGTConv(width, HIDDEN, DATA.metadata(), heads=2) for width in (WIDTHS, HIDDEN))),
    "HAN": lambda: Typed(*(pyg.HANConv(width, HIDDEN, DATA.metadata(), heads=2) for width in (WIDTHS, HIDDEN))),
    "to_hetero, max": lambda: Transformed("max"),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double()


def arguments(of: Any, number: Callable[[str], torch.Tensor], embedded: bool) -> tuple[Dict, Dict, Dict]:
    """The dictionaries of a ``HeteroData`` or of a rank's graph. number: the ids of nodes within their type."""
    x_dict = {name: x.double() for name, x in of.x_dict.items()}
    x_dict["venue"] = torch.ones(number("venue").numel(), 1, dtype=torch.float64)
    ids = number("term")
    x_dict["term"] = ids if embedded else ids[:, None] * torch.ones(3, dtype=torch.float64)
    return x_dict, of.edge_index_dict, {key: values.double() for key, values in of.edge_attr_dict.items()}


def step(model: nn.Module, given: tuple[Dict, Dict, Dict]) -> tuple[Dict, dict[str, torch.Tensor]]:
    """The results, and the gradients of the sum of their squares, that a parameter without one has as zeros."""
    found = model(*given) if isinstance(model, Typed) else model(*given[:2])
    model.zero_grad()
    torch.stack([(rows**2).sum() for rows in found.values()]).sum().backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    return {name: rows.detach() for name, rows in found.items()}, gradients


def worst(models: dict[str, nn.Module], path: Path, ranks: int, *, check: bool = False, **how: Any) -> dict[str, float]:
    """The largest difference of each model's results and gradients from those on one machine."""
    first = np.cumsum([0, *(DATA[name].num_nodes for name in DATA.node_types)])

    def program(world: Any) -> Any:
        graph, found = hpcgnn.load(path, world), {}
        ids = {
            name: graph.of_type(name, graph.original_ids) - int(begin)
            for name, begin in zip(DATA.node_types, first, strict=False)
        }
        for name, model in models.items():
            twin = hpcgnn.distribute(copy.deepcopy(model), graph, check=check, backend="reference", **how)
            for _ in range(2):
                found[name] = step(twin, arguments(graph, ids.__getitem__, isinstance(model, Typed)))
        return found, ids

    parts, differences = on_threads(ranks, program), {}
    for name, model in models.items():
        numbers = lambda kind: torch.arange(DATA[kind].num_nodes)  # noqa: E731
        results, gradients = step(copy.deepcopy(model), arguments(DATA, numbers, isinstance(model, Typed)))
        errors = [0.0]
        for kind, whole in results.items():
            rows = torch.cat([found[name][0][kind] for found, _ in parts])
            errors.append(float((rows - whole[torch.cat([ids[kind] for _, ids in parts])]).abs().max()))
        for parameter, whole in gradients.items():
            total = torch.stack([found[name][1][parameter] for found, _ in parts]).sum(0)
            errors.append(float((total - whole).abs().max() / whole.abs().max().clamp(min=1)))
        differences[name] = float(np.max(errors))  # not a number if one of them is none
    return differences


def parts_of(tmp_path: Path, ranks: int) -> Path:
    """The graph in parts. The last has no paper, and no edge to one; of three or more, one has no node."""
    part = small_graphs.random_parts(ARRAYS.num_nodes, ranks, empty=1 if ranks > 2 else None)
    if ranks > 1:
        part[:30][part[:30] == ranks - 1] = 0
    small_graphs.write_parts(tmp_path / "parts.h5", ARRAYS, part, ranks)
    return tmp_path / "parts.h5"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4] if EVERYTHING else [1, 3])
def test_models_by_type_equal_pygs(tmp_path: Path, ranks: int) -> None:
    found = worst({name: made(name) for name in MODELS}, parts_of(tmp_path, ranks), ranks)
    assert {name: error for name, error in found.items() if not error < 1e-10} == {}


def test_few_bits_come_near(tmp_path: Path) -> None:
    models, path = {name: made(name) for name in ("SAGE, sum", "HGT")}, parts_of(tmp_path, 2)
    found = worst(models, path, 2, messages=MessageConfig(bits=8))
    assert all(1e-6 < error < 0.3 for error in found.values()), found


@pytest.mark.parametrize("name", ["HAN", "to_hetero, max", "features of edges"])
def test_calls_by_type_are_rehearsed(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert worst({name: made(name)}, parts_of(tmp_path, 2), 2, check=True)[name] < 1e-10
    assert caplog.messages == []


def test_rows_of_a_type_travel_once_for_all_relations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, plain = [], Bridge._exchanged
    monkeypatch.setattr(
        Bridge, "_exchanged", lambda bridge, *given: (sent.append(given[3][0]), plain(bridge, *given))[1]
    )
    worst({"SAGE, sum": made("SAGE, sum")}, parts_of(tmp_path, 1), 1)
    assert sorted(sent) == sorted([0, 1, 2] * 2 * 2)  # two layers, two passes; four relations begin at papers


class Centred(nn.Module):
    def forward(self, x_dict: Dict, edge_index_dict: Dict) -> torch.Tensor:
        return x_dict["paper"] - x_dict["paper"].mean(0)


class OtherEdges(nn.Module):
    """A layer on edges that do not come from the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv((5, 5), 4)

    def forward(self, x_dict: Dict, edge_index_dict: Dict) -> torch.Tensor:
        return self.conv(x_dict["paper"], torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("model", "check", "why"),
    [(Centred(), True, "combines the rows of all nodes"), (OtherEdges(), False, "edges of which no type is known")],
)
def test_models_that_need_other_rows_are_refused(tmp_path: Path, model: nn.Module, check: bool, why: str) -> None:
    path = parts_of(tmp_path, 1)

    def program(world: Any) -> None:
        graph = hpcgnn.load(path, world)
        hpcgnn.distribute(model, graph, check=check)(graph.x_dict, graph.edge_index_dict)

    with pytest.raises(HpcgnnError, match=why):
        on_threads(1, program)


def test_arguments_with_other_rows_are_refused_on_all_ranks(tmp_path: Path) -> None:
    path = parts_of(tmp_path, 2)

    def program(world: Any) -> str:
        graph = hpcgnn.load(path, world)
        x_dict = graph.x_dict
        if world.rank == 1:
            x_dict["author"] = torch.cat((x_dict["author"], x_dict["author"][:1]))
        with pytest.raises(HpcgnnError) as error:
            hpcgnn.distribute(nn.Identity(), graph, check=False)(x_dict)
        return str(error.value)

    first, second = on_threads(2, program)
    assert first == second
    assert "['author'] has other rows than this rank's nodes or edges of its type" in first
