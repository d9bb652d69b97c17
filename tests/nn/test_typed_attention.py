"""R-GAT and HGT on graphs with types of nodes and edges: equal to PyG's on any number of ranks, and to nothing else."""

from __future__ import annotations

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
from hpcgnn.nn import relational
from hpcgnn.nn import typed_models as native
from hpcgnn.nn.relational import products, typed_edges
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

TOLERANCE = 1e-10
CONFIGS = {
    "rgat": ("rgat", {"bases": 2, "norm": "layer"}),
    "rgat, within": ("rgat", {"attention_mechanism": "within-relation"}),
    "hgt": ("hgt", {"norm": "layer"}),
    "rgat, pieces": ("rgat", {"halo": "pieces", "norm": "layer"}),
    "hgt, pieces": ("hgt", {"halo": "pieces", "norm": "layer"}),
}
HETERO = typed_models.ARRAYS
WITHOUT = replace(HETERO, edge_attr=None, edge_types=tuple(replace(each, columns=0) for each in HETERO.edge_types))
RANKS = (1, 2, 3, 4)


def errors(ranks: int, folder: Path, name: str, **how: Any) -> float:
    """The largest error of all ranks; of three or more, the last one has no nodes."""
    model, changes = CONFIGS[name]
    found = on_threads(ranks, lambda world: typed_models.compare(world, folder, model, **changes, **how))
    return max(error for each in found for error in each.values())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_equal_pyg_on_a_graph_with_types_of_nodes(tmp_path, ranks, name):
    for order in ("none", "degree"):
        assert errors(ranks, tmp_path, name, order=order) < TOLERANCE, order


def test_without_features_of_edges(tmp_path):
    assert errors(2, tmp_path, "rgat", arrays=WITHOUT) < TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_with_learned_rows_of_nodes(tmp_path, name):
    assert errors(3, tmp_path, name, embed="venue,term") < TOLERANCE


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


@pytest.mark.parametrize("sabotage", [swapped, dropped], ids=["swapped", "dropped"])
@pytest.mark.parametrize("name", CONFIGS)
def test_relations_that_are_swapped_or_dropped_are_noticed(tmp_path, monkeypatch, name, sabotage):
    monkeypatch.setattr(relational, "products", sabotage)
    assert errors(2, tmp_path, name) > 1e-3


def test_features_of_other_edges_are_noticed(tmp_path, monkeypatch):
    def of_others(*given, **how):
        edges = typed_edges(*given, **how)
        return replace(edges, attr=edges.attr.flip(0))

    monkeypatch.setattr(native, "typed_edges", of_others)
    assert errors(2, tmp_path, "rgat") > 1e-3


def test_a_pair_of_a_source_and_a_type_is_multiplied_once(tmp_path, monkeypatch):
    """Not once for each edge, and not each node with each type."""
    rows = []
    monkeypatch.setattr(relational, "products", lambda x, *given: rows.append(len(x)) or products(x, *given))
    errors(1, tmp_path, "rgat")
    pairs = {
        (*edge, kind) for *edge, kind in zip(HETERO.edge_index[0].tolist(), HETERO.edge_type.tolist(), strict=True)
    }
    assert len(pairs) in rows
    assert max(rows) <= HETERO.edge_index.shape[1]


def test_nodes_at_which_no_edge_ends_keep_a_row(tmp_path):
    """PyG's HGTConv has no rows of a type without in-edges; here they are like those of other nodes without in-edges."""
    kept = HETERO.edge_type < 5  # no edge ends at a term any more
    arrays = replace(
        HETERO,
        edge_index=HETERO.edge_index[:, kept],
        edge_type=HETERO.edge_type[kept],
        edge_attr=HETERO.edge_attr[kept],
    )
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    scores = hpcgnn.build_model(models.small("hgt"), graph)(graph.features)
    assert scores.shape == (graph.num_nodes, graph.meta.num_classes)
    assert bool(scores.isfinite().all())


SPARSE = small_graphs.with_typed_edges(small_graphs.random_multigraph())
SPARSE.x = small_graphs.sp.csr_matrix(SPARSE.x)


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
