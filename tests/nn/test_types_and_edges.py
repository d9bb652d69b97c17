"""Types of nodes and edges, and features of edges: faults in them are noticed, graphs that do not fit are refused, and an edge
takes little memory. That models equal PyG's on any number of ranks is for ``test_matrix.py`` to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
GRAPHS = {"sage": HETERO, "gat": HETERO, "gcn": WITHIN}
JOINS = ("sum", "mean", "max")
NAMES = ("gine", "gatv2", "transformer")
SPARSE = replace(ARRAYS, x=sp.csr_matrix(ARRAYS.x))


def said(tmp_path: Path, arrays: small_graphs.Arrays, name: str) -> set[str]:
    """The sentences with which two ranks refuse a model."""

    def program(world: World) -> str:
        graph = small_graphs.on_ranks(world, arrays, tmp_path / "parts.h5")
        with pytest.raises(HpcgnnError) as error:
            hpcgnn.build_model(models.small(name), graph)
        return str(error.value)

    return {*on_threads(2, program)}


def test_gine_without_features_of_edges_is_refused(tmp_path):
    (sentence,) = said(tmp_path, PLAIN, "gine")
    assert sentence.endswith("has no features of edges, which gine needs: convert a graph with edge_attr, or take gin")


def test_gine_with_sparse_features_is_refused(tmp_path):
    (sentence,) = said(tmp_path, replace(ARRAYS, x=sp.csr_matrix(ARRAYS.x)), "gine")
    assert "gine aggregates features before it multiplies them" in sentence


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


def types_here(world: World, path: Path) -> np.ndarray:
    """(R,) number of edges of each type at this rank's nodes."""
    graph = hpcgnn.load(path, world)
    return np.bincount(graph.edge_type, minlength=graph.meta.num_edge_types)


def test_some_rank_lacks_a_type_and_parallel_edges_differ_in_theirs(tmp_path):
    """The graphs of the comparison have what can go wrong."""
    small_graphs.in_parts(tmp_path / "parts.h5", HETERO, 4)
    counts = np.array(on_threads(4, lambda world: types_here(world, tmp_path / "parts.h5")))
    assert (counts == 0).any()
    typed = small_graphs.with_typed_edges(small_graphs.random_multigraph())
    kinds: dict[tuple[int, int], set[int]] = {}
    for source, target, kind in zip(*typed.edge_index.tolist(), typed.edge_type.tolist(), strict=True):
        kinds.setdefault((source, target), set()).add(kind)
    assert max(map(len, kinds.values())) > 1


def swapped(rows, sizes, weights, *how):
    turned = torch.arange(weights.shape[0])
    turned[:2] = torch.tensor([1, 0])
    return products(rows, sizes, weights[turned], *how)


def dropped(rows, sizes, weights, *how):
    kept = torch.ones(weights.shape[0], 1, 1, dtype=weights.dtype)
    kept[0] = 0
    return products(rows, sizes, weights * kept, *how)


def test_nodes_at_which_no_edge_ends_keep_a_row(tmp_path):
    """PyG's HGTConv has no rows of a type without in-edges; here they are like those of other nodes without in-edges."""
    arrays = small_graphs.with_edges(HETERO, HETERO.edge_type < 5)  # no edge ends at a term any more
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    scores = hpcgnn.build_model(models.small("hgt"), graph)(graph.features)
    assert scores.shape == (graph.num_nodes, graph.meta.num_classes)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize(
    ("name", "arrays", "sentence"),
    [
        ("rgat", small_graphs.random_multigraph(), "has no types of edges: convert a graph with edge_type"),
        ("hgt", small_graphs.random_multigraph(), "has no types of edges: convert a graph with edge_type"),
        ("rgat", SPARSE, "rgat aggregates features before it multiplies them"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, name, arrays, sentence):
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match=sentence):
        hpcgnn.build_model(models.small(name), graph)


def test_heads_share_the_hidden_columns():
    with pytest.raises(HpcgnnError, match="5 heads cannot share a width of 12"):
        models.small("hgt", heads=5).check()


def test_parallel_edges_of_different_types_have_draws_of_their_own(tmp_path):
    """Those of one type share an id. An id does not depend on the number of ranks."""
    arrays = small_graphs.with_typed_edges(small_graphs.random_multigraph())

    def ids_of(world: World) -> list[int]:
        graph = small_graphs.on_ranks(world, arrays, tmp_path / f"ids-{world.size}.h5")
        return relational.typed_edges(graph).ids.tolist()

    one, three = (sorted(each for ids in on_threads(ranks, ids_of) for each in ids) for ranks in (1, 3))
    edges = {(*ends, kind) for *ends, kind in zip(*arrays.edge_index.tolist(), arrays.edge_type.tolist(), strict=True)}
    assert len(edges) > len({edge[:2] for edge in edges}), "there are parallel edges of different types"
    assert len(set(one)) == len(edges)
    assert three == one


def sent_rows(world: World, path: Path, name: str, how: str) -> tuple[int, int]:
    """The rows that this rank sends in an aggregation, and those of the plan of all types of edges together."""
    graph = small_graphs.on_ranks(world, GRAPHS[name], path)
    model = hpcgnn.build_model(models.small(name, edge_types=how), graph)
    return int(model.aggregator.exchange.send_counts.sum()), graph.built_plan(
        "hybrid", graph.relation_rows().rows
    ).send.num_rows


@pytest.mark.parametrize("name", ["sage", "gcn"])
@pytest.mark.parametrize("how", JOINS)
def test_rows_are_those_of_the_minimum_cover_of_all_types(tmp_path: Path, name: str, how: str) -> None:
    found = on_threads(3, lambda world: sent_rows(world, tmp_path / "parts.h5", name, how))
    assert all(sent == planned for sent, planned in found)
    assert sum(sent for sent, _ in found) > 0


def test_nodes_of_a_type_at_which_no_edge_ends_get_zeros(tmp_path: Path) -> None:
    """PyG's ``HeteroConv`` has no rows of them."""
    fewer = small_graphs.with_edges(HETERO, HETERO.edge_type < 5)
    arrays = replace(fewer, edge_types=HETERO.edge_types[:5], edge_attr=None)
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    for name in ("sage", "gat"):
        for how in JOINS:
            model = hpcgnn.build_model(models.small(name, edge_types=how, norm="none", heads=4), graph)
            with torch.no_grad():
                model.layers[-1].bias.add_(1)
                y = model(graph.features)
            assert bool((y[graph.node_type == 3] == 0).all())
            assert bool((y[graph.node_type < 3] != 0).any(dim=1).all())


@pytest.mark.parametrize(
    ("name", "arrays", "changes", "sentence"),
    [
        (
            "gcn",
            HETERO,
            {},
            "edges of author__writes__paper .* end at another type of nodes .* take --model sage or gat",
        ),
        ("gat", HETERO, {"attention": "partial"}, "attention partial adds up edges of all types: take halo"),
        ("sage", small_graphs.random_multigraph(), {}, "has no types of edges: convert a graph with edge_type"),
        ("gat", small_graphs.random_multigraph(), {}, "has no types of edges: convert a graph with edge_type"),
        ("gcn", SPARSE, {}, "gcn aggregates features before it multiplies them"),
    ],
)
def test_weights_by_type_that_cannot_be_are_refused(
    tmp_path: Path, name: str, arrays: small_graphs.Arrays, changes: dict, sentence: str
) -> None:
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match=sentence):
        hpcgnn.build_model(models.small(name, edge_types="sum", **changes), graph)


def test_sums_of_types_are_not_added_up_on_a_node(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), HETERO, tmp_path / "parts.h5")
    messages = Messages(graph.world, MessageConfig(node_aware="on"))
    with pytest.raises(HpcgnnError, match="the sums of relations are not added up on a node"):
        hpcgnn.build_model(models.small("sage", edge_types="sum"), graph, messages=messages)


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


@pytest.mark.parametrize("name", NAMES)
def test_blocks_may_end_inside_of_the_edges_of_a_node(tmp_path, monkeypatch, name):
    """A block is as small as three edges."""
    monkeypatch.setattr(edge_blocks, "_VALUES", 36)
    assert not broken(tmp_path, name, ARRAYS)


def test_a_pair_of_a_source_and_a_type_is_multiplied_once(tmp_path, monkeypatch):
    """Not once for each edge, and not each node with each type."""
    rows = []
    monkeypatch.setattr(relational, "products", lambda x, *given: rows.append(len(x)) or products(x, *given))
    graph = small_graphs.on_ranks(one_rank(), HETERO, tmp_path / "parts.h5")
    hpcgnn.build_model(models.small("rgat"), graph)(graph.features)
    pairs = {*zip(HETERO.edge_index[0].tolist(), HETERO.edge_type.tolist(), strict=True)}
    assert len(pairs) in rows
    assert max(rows) <= HETERO.edge_index.shape[1]


REAL = {
    "rgcn": {"bases": 2}, "rgat": {"bases": 2}, "hgt": {}, "sage": {"edge_types": "mean"}, "gat": {"edge_types": "sum"},
}  # fmt: skip


@pytest.mark.parametrize("change", [small_graphs.swapped, small_graphs.dropped])
@pytest.mark.parametrize("name", REAL)
def test_on_a_real_graph_swapped_and_dropped_types_are_noticed(tmp_path, shared_data, name, change):
    arrays = small_graphs.by_label(shared_data("debian-sections.npz"), 600)
    config, values = models.small(name, **REAL[name]), DEFAULTS | {"model": name}
    assert not wrong(ran_on(tmp_path, values, arrays, config))
    assert wrong(ran_on(tmp_path, values, arrays, config, change(arrays)))
