"""Models with features of edges: equal to PyG's on 1 to 4 ranks with every strategy, also where blocks of edges end inside of a
row; what they refuse; and the memory of an edge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import models
from torch.utils._python_dispatch import TorchDispatchMode

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels import buffers
from hpcgnn.nn import edge_blocks
from hpcgnn.nn.config import OF_EDGES, describe
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

NAMES = ("gine", "gatv2", "transformer")
PLAIN = small_graphs.random_multigraph(seed=3)
ARRAYS = small_graphs.with_typed_edges(PLAIN, types=4, columns=3)
TOLERANCE = 1e-10


def errors(
    world: World, folder: Path, arrays: small_graphs.Arrays, name: str, strategy: str = "hybrid", change: Any = None
) -> list[float]:
    """The largest relative errors of scores and of gradients on all ranks. change: of the graph that the ranks have."""
    graph = small_graphs.on_ranks(world, arrays, folder / f"{world.size}.h5")
    if change is not None:
        change(graph)
    found = models.compare(graph, arrays, models.small(name), strategy)
    return world.allreduce(np.array([*found.values()]), "max").tolist()


@pytest.mark.parametrize("strategy", ["pre", "post", "hybrid"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_models_equal_pygs_with_every_strategy(tmp_path, monkeypatch, ranks, strategy):
    """Also where a block is as small as three edges, so that it ends inside of a row."""
    monkeypatch.setattr(edge_blocks, "_VALUES", 36)
    for name in NAMES:
        found = ThreadPool(ranks).run(errors, tmp_path, ARRAYS, name, strategy)[0]
        assert max(found) < TOLERANCE, (name, found)


@pytest.mark.parametrize("name", ["gatv2", "transformer"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_attention_needs_no_features_of_edges(tmp_path, ranks, name):
    assert max(ThreadPool(ranks).run(errors, tmp_path, PLAIN, name)[0]) < TOLERANCE


def swap_two_edges(graph: hpcgnn.LocalGraph) -> None:
    """Exchange the features of two edges into the node of rank 0 that has the most."""
    attr, (sources, targets) = graph.edge_attr.clone(), graph.edge_index
    if graph.world.rank:
        return
    node = targets.bincount().argmax()
    two = (targets == node).nonzero()[[0, -1], 0]
    assert sources[two].diff() != 0
    attr[two] = attr[two.flip(0)]
    graph._of_edges["attr"] = attr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_features_of_another_edge_are_noticed(tmp_path, ranks, name):
    found = ThreadPool(ranks).run(errors, tmp_path, ARRAYS, name, "hybrid", swap_two_edges)[0]
    assert found[0] > 1e4 * TOLERANCE, found


@pytest.mark.parametrize("name", NAMES)
def test_models_equal_pygs_on_a_real_graph(tmp_path, shared_data, name):
    cora = small_graphs.from_npz(shared_data("cora.npz"))
    arrays = small_graphs.with_typed_edges(
        replace(cora, x=cora.x.toarray()[:, :200], y=cora.y.astype(np.int64)), columns=5
    )
    for ranks in (1, 3):
        found = ThreadPool(ranks).run(errors, tmp_path, arrays, name)[0]
        assert max(found) < TOLERANCE, (ranks, found)


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


@pytest.mark.parametrize("name", ["gatv2", "transformer"])
def test_attention_takes_sparse_features(tmp_path, name):
    graph = small_graphs.on_ranks(one_rank(), replace(ARRAYS, x=sp.csr_matrix(ARRAYS.x)), tmp_path / "parts.h5")
    dense = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "dense.h5")
    found, wanted = (hpcgnn.build_model(models.small(name), each, seed=1)(each.features) for each in (graph, dense))
    torch.testing.assert_close(found, wanted)


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
