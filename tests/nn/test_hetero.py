"""GraphSAGE, GCN and GAT with weights of their own for each type of edges: PyG's ``HeteroConv`` on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from ranks import models, typed_models

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import EdgeType
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

HETERO = typed_models.ARRAYS
RANKS, JOINS = (1, 2, 3, 4), ("sum", "mean", "max")


def within_types() -> small_graphs.Arrays:
    """The graph with edges, and self-loops, of which none leads to another type of nodes. Two types of edges are among papers."""
    first = np.cumsum([0, *(each.count for each in HETERO.node_types)])
    ends = (0, 1, 2, 3, 0, 3)  # where an edge of each type begins; its source follows from its destination
    kinds, (source, target) = HETERO.edge_type, HETERO.edge_index
    counts = np.array([HETERO.node_types[end].count for end in ends])[kinds]
    begins = first[np.array(ends)][kinds]
    index = begins + np.stack((source, target)) % counts
    types = tuple(EdgeType(end, f"like{number}", end) for number, end in enumerate(ends))
    return replace(HETERO, edge_index=index, edge_types=types, edge_attr=None)


WITHIN = within_types()
GRAPHS = {"sage": HETERO, "gat": HETERO, "gcn": WITHIN}


def errors(ranks: int, folder: Path, name: str, how: str, strategy: str = "hybrid", **others: Any) -> float:
    """The largest error of all ranks; of three or more, the last one has no nodes."""
    given = {"arrays": GRAPHS[name], "edge_types": how} | others
    found = on_threads(ranks, lambda world: typed_models.compare(world, folder, name, "", strategy, **given))
    return max(error for each in found for error in each.values())


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("how", JOINS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_equal_pyg(tmp_path: Path, ranks: int, how: str, name: str) -> None:
    strategy = ("pre", "post", "hybrid")[(ranks + JOINS.index(how)) % 3]
    assert errors(ranks, tmp_path, name, how, strategy, order="none" if ranks % 2 else "degree") < 1e-10


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("how", JOINS)
def test_types_without_edges_count(tmp_path: Path, name: str, how: str) -> None:
    assert errors(2, tmp_path, name, how, arrays=small_graphs.dropped(GRAPHS[name])) < 1e-10


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("change", [small_graphs.swapped, small_graphs.dropped])
def test_on_a_real_graph_swapped_and_dropped_types_are_noticed(
    tmp_path: Path, shared_data: Callable[[str], Path], name: str, change: Callable[..., Any]
) -> None:
    arrays = small_graphs.by_label(shared_data("debian-sections.npz"))
    if name == "gcn":  # edges within a type of nodes, which are types 0, 1, 8, 9, 16 and 17
        kept = arrays.edge_type % 8 < 2
        arrays = replace(
            arrays, edge_index=arrays.edge_index[:, kept], edge_type=arrays.edge_type[kept] // 8 * 2 + arrays.edge_type[kept] % 8,
            edge_types=tuple(each for number, each in enumerate(arrays.edge_types) if number % 8 < 2),
        )  # fmt: skip
    assert errors(3, tmp_path, name, "mean", arrays=arrays) < 1e-10
    assert errors(2, tmp_path, name, "mean", arrays=arrays, change=change) > 1e-6


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
    kept = HETERO.edge_type < 5
    arrays = replace(
        HETERO,
        edge_index=HETERO.edge_index[:, kept],
        edge_type=HETERO.edge_type[kept],
        edge_types=HETERO.edge_types[:5],
        edge_attr=None,
    )
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    for name in ("sage", "gat"):
        for how in JOINS:
            model = hpcgnn.build_model(models.small(name, edge_types=how, norm="none", heads=4), graph)
            with torch.no_grad():
                model.layers[-1].bias.add_(1)
                y = model(graph.features)
            assert bool((y[graph.node_type == 3] == 0).all())
            assert bool((y[graph.node_type < 3] != 0).any(dim=1).all())


PARTIAL = {"attention": "partial"}
SPARSE = small_graphs.with_typed_edges(small_graphs.random_multigraph())
SPARSE.x = small_graphs.sp.csr_matrix(SPARSE.x)


@pytest.mark.parametrize(
    ("name", "arrays", "changes", "sentence"),
    [
        (
            "gcn",
            HETERO,
            {},
            "edges of author__writes__paper .* end at another type of nodes .* take --model sage or gat",
        ),
        ("gat", HETERO, PARTIAL, "attention partial adds up edges of all types: take halo"),
        ("sage", small_graphs.random_multigraph(), {}, "has no types of edges: convert a graph with edge_type"),
        ("gat", small_graphs.random_multigraph(), {}, "has no types of edges: convert a graph with edge_type"),
        ("gcn", SPARSE, {}, "gcn aggregates features before it multiplies them"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
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
