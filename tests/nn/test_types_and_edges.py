"""Types of nodes and edges, and features of edges: faults in them are noticed, graphs that do not fit are refused, and an edge
takes little memory. That models equal PyG's on any number of ranks is for ``test_matrix.py`` to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
import small_graphs
import torch
from ranks import models, typed_models
from test_matrix import DEFAULTS, ran_on, wrong
from torch.utils._python_dispatch import TorchDispatchMode

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.kernels import buffers
from hpcgnn.nn import edge_blocks, edge_models, relational
from hpcgnn.nn import models as native_models
from hpcgnn.nn import typed_models as native
from hpcgnn.nn.config import OF_EDGES, describe
from hpcgnn.nn.halo import attention_edges
from hpcgnn.nn.relational import products, typed_edges
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

PLAIN = small_graphs.random_multigraph(seed=3)
ARRAYS = small_graphs.with_typed_edges(PLAIN, types=4, columns=3)
HETERO = typed_models.ARRAYS
WITHIN = small_graphs.within_types(HETERO)
SUM = {"edge_types": "sum"}
GRAPHS = {"sage": HETERO, "gat": HETERO, "gcn": WITHIN}
NAMES = ("gine", "gatv2", "transformer")
SPARSE = replace(ARRAYS, x=sp.csr_matrix(ARRAYS.x))


NO_TYPES = "has no types of edges: convert a graph with edge_type"
REFUSED = [
    ("gine", PLAIN, {}, "has no features of edges, which gine needs: convert a graph with edge_attr, or take gin$"),
    ("gine", SPARSE, {}, "gine aggregates features before it multiplies them"),
    ("rgat", PLAIN, {}, NO_TYPES),
    ("hgt", PLAIN, {}, NO_TYPES),
    ("rgat", SPARSE, {}, "rgat aggregates features before it multiplies them"),
    ("gcn", HETERO, SUM, "edges of author__writes__paper .* end at another type of nodes .* take --model sage or gat"),
    ("gat", HETERO, SUM | {"attention": "partial"}, "attention partial adds up edges of all types: take halo"),
    ("sage", PLAIN, SUM, NO_TYPES),
    ("gat", PLAIN, SUM, NO_TYPES),
    ("gcn", SPARSE, SUM, "gcn aggregates features before it multiplies them"),
    ("sage", HETERO, SUM | {"node_aware": "on"}, "the sums of relations are not added up on a node"),
    ("hgt", HETERO, {"heads": 5}, "5 heads cannot share a width of 12"),
]


@pytest.mark.parametrize(("name", "arrays", "settings", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence_on_all_ranks(tmp_path, name, arrays, settings, sentence):
    settings = dict(settings)
    how = MessageConfig(node_aware=settings.pop("node_aware", "off"))

    def program(world: World) -> str:
        graph = small_graphs.on_ranks(world, arrays, tmp_path / "parts.h5")
        with pytest.raises(HpcgnnError, match=sentence) as error:
            hpcgnn.build_model(models.small(name, **settings), graph, messages=Messages(world, how))
        return str(error.value)

    assert len({*on_threads(2, program)}) == 1


@pytest.mark.parametrize("name", [*NAMES, "rgcn"])
def test_a_description_keeps_what_edges_have(tmp_path, name):
    """By it, a checkpoint's model is compared with that of a run that continues it, and with a graph for predictions."""
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    description = hpcgnn.build_model(models.small(name), graph).description()
    assert {key: description[key] for key in OF_EDGES if key in description} == (
        {"relations": 4} if name == "rgcn" else {"edge_features": 3}
    )
    plain = small_graphs.on_ranks(one_rank(), PLAIN, tmp_path / "plain.h5")
    assert hpcgnn.build_model(models.small("gatv2"), plain).description() == describe(models.small("gatv2"), 9, 4)


class Largest(TorchDispatchMode):
    """Notes the largest number of values of a new tensor of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                self.values = max(self.values, each.numel())
        return result


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_has_a_row_of_the_width_for_each_edge(tmp_path, monkeypatch, name):
    edges, hidden, heads, columns = 4000, 32, 4, 3
    arrays = small_graphs.with_typed_edges(small_graphs.random_multigraph(nodes=40, edges=edges), columns=columns)
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    monkeypatch.setattr(edge_blocks, "_VALUES", 64 * hidden)
    model = hpcgnn.build_model(models.small(name, layers=2, hidden=hidden, heads=heads), graph, seed=1)
    largest, empty = Largest(), buffers.empty

    def noted(rows: int, width: int, *rest: Any, **named: Any) -> torch.Tensor:
        largest.values = max(largest.values, rows * width)
        return empty(rows, width, *rest, **named)

    monkeypatch.setattr(buffers, "empty", noted)
    with largest:
        model(graph.features).square().sum().backward()
    assert edges * columns <= largest.values < 1.2 * edges * max(heads, columns)  # of its weights or features


def swapped(rows, sizes, weights, *how):
    turned = torch.arange(weights.shape[0])
    turned[:2] = torch.tensor([1, 0])
    return products(rows, sizes, weights[turned], *how)


def dropped(rows, sizes, weights, *how):
    kept = torch.ones(weights.shape[0], 1, 1, dtype=weights.dtype)
    kept[0] = 0
    return products(rows, sizes, weights * kept, *how)


def sent_rows(world: World, path: Path, name: str, how: str) -> tuple[int, int]:
    """The rows that this rank sends in an aggregation, and those of the plan of all types of edges together."""
    graph = small_graphs.on_ranks(world, GRAPHS[name], path)
    model = hpcgnn.build_model(models.small(name, edge_types=how), graph)
    return int(model.aggregator.exchange.send_counts.sum()), graph.built_plan(
        "hybrid", graph.relation_rows().rows
    ).send.num_rows


@pytest.mark.parametrize(("name", "how"), [("sage", "sum"), ("gcn", "max")])
def test_rows_are_those_of_the_minimum_cover_of_all_types(tmp_path: Path, name: str, how: str) -> None:
    found = on_threads(3, lambda world: sent_rows(world, tmp_path / "parts.h5", name, how))
    assert all(sent == planned for sent, planned in found)
    assert sum(sent for sent, _ in found) > 0


def test_only_biases_that_a_norm_takes_away_rest(tmp_path: Path) -> None:
    """Those of all nodes alike: with one type of nodes, and not of a maximum."""
    typed = small_graphs.with_typed_edges(small_graphs.random_multigraph())
    for arrays, how, rests in ((typed, "sum", True), (typed, "max", False), (HETERO, "mean", False)):
        graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
        model = hpcgnn.build_model(models.small("sage", edge_types=how, norm="mean"), graph)
        assert model.layers[0].bias.requires_grad is not rests
        assert model.layers[-1].bias.requires_grad


def broken(tmp_path: Path, name: str, arrays: small_graphs.Arrays = HETERO, **settings: Any) -> bool:
    """Return whether two ranks give other results than the formula."""
    config = models.small(name, **settings)
    return bool(wrong(ran_on(tmp_path, DEFAULTS | {"model": name, "ranks": 2}, arrays, config)))


@pytest.mark.parametrize("sabotage", [swapped, dropped], ids=["swapped", "dropped"])
@pytest.mark.parametrize(("name", "settings"), [("rgat", {"bases": 2}), ("rgat", {"halo": "pieces"}), ("hgt", {})])
def test_relations_that_are_swapped_or_dropped_are_noticed(tmp_path, monkeypatch, name, settings, sabotage):
    assert not broken(tmp_path, name, **settings)
    monkeypatch.setattr(relational, "products", sabotage)
    assert broken(tmp_path, name, **settings)


@pytest.mark.parametrize("name", [*NAMES, "rgat"])
def test_features_of_other_edges_are_noticed(tmp_path, monkeypatch, name):
    def of_others(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **how: (edges := make(*given, **how)) and replace(edges, attr=edges.attr.flip(0))

    assert not broken(tmp_path, name, ARRAYS)
    for module in (edge_models, native_models):
        monkeypatch.setattr(module, "attention_edges", of_others(attention_edges))
    monkeypatch.setattr(native, "typed_edges", of_others(typed_edges))
    assert broken(tmp_path, name, ARRAYS)


def test_a_pair_of_a_source_and_a_type_is_multiplied_once(tmp_path, monkeypatch):
    """Not once for each edge, and not each node with each type."""
    rows = []
    monkeypatch.setattr(relational, "products", lambda x, *given: rows.append(len(x)) or products(x, *given))
    graph = small_graphs.on_ranks(one_rank(), HETERO, tmp_path / "parts.h5")
    hpcgnn.build_model(models.small("rgat"), graph)(graph.features)
    pairs = {*zip(HETERO.edge_index[0].tolist(), HETERO.edge_type.tolist(), strict=True)}
    assert len(pairs) in rows
    assert max(rows) <= HETERO.edge_index.shape[1]


REAL = [
    ("rgcn", {"bases": 2}, small_graphs.swapped), ("rgat", {"bases": 2}, small_graphs.dropped), ("hgt", {}, small_graphs.swapped),
    ("sage", {"edge_types": "mean"}, small_graphs.dropped), ("gat", {"edge_types": "sum"}, small_graphs.swapped),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "change"), REAL)
def test_on_a_real_graph_swapped_and_dropped_types_are_noticed(tmp_path, shared_data, name, settings, change):
    arrays = small_graphs.by_label(shared_data("debian-sections.npz"), 600)
    config, values = models.small(name, **settings), DEFAULTS | {"model": name}
    assert not wrong(ran_on(tmp_path, values, arrays, config))
    assert wrong(ran_on(tmp_path, values, arrays, config, change(arrays)))
