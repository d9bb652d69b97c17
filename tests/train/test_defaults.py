"""Training with nothing set: it learns what a linear model learns, and files of older runs keep the defaults of their time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import small_graphs
import torch
from trainings import by_turns, trainer_of

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.layers import BatchNorm, MeanNorm
from hpcgnn.world.thread_world import one_rank

NODES, FEATURES, CLASSES = 600, 600, 5


def common_features() -> small_graphs.Arrays:
    """A graph whose nodes have a third of the features each, most of them in common, as on Amazon Computers.

    A first step of Adam changes each weight by the learning rate in the direction that all nodes share, so the sums of some
    hundred ones move all nodes far, and alike.
    """
    rng = np.random.default_rng(7)
    y = rng.choice(CLASSES, NODES, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    likely = rng.beta(0.6, 1.1, FEATURES) * np.exp(rng.normal(0, 0.12, (CLASSES, FEATURES)))
    x = (rng.random((NODES, FEATURES)) < likely[y]).astype(np.float32)
    source = rng.integers(0, NODES, 8 * NODES)
    like = np.array([rng.choice(np.flatnonzero(y == y[node])) for node in source])
    target = np.where(rng.random(source.size) < 0.5, like, rng.integers(0, NODES, source.size))
    group = rng.choice(3, NODES, p=[0.6, 0.2, 0.2])
    edges = np.concatenate((np.stack((source, target)), np.stack((target, source))), axis=1)
    return small_graphs.Arrays(edges, x, y, {name: group == k for k, name in enumerate(small_graphs.MASKS)})


def of_ridge_regression(graph: small_graphs.Arrays) -> float:
    """The test accuracy of a ridge regression on the features, summed over neighbours as GCN does it twice."""
    loops = np.arange(graph.num_nodes)
    rows, columns = np.concatenate((graph.edge_index[::-1], [loops, loops]), axis=1)
    adjacency = sp.csr_matrix((np.ones(rows.size), (rows, columns)))
    scale = sp.diags(np.asarray(adjacency.sum(1)).ravel() ** -0.5)
    normalised = scale @ adjacency @ scale
    x = normalised @ (normalised @ (graph.x / graph.x.sum(1, keepdims=True)))
    x = np.column_stack((x / x.std(), np.ones(graph.num_nodes)))
    train, _, test = (graph.masks[name] for name in small_graphs.MASKS)
    targets = np.eye(CLASSES)[graph.y]
    weights = np.linalg.solve(x[train].T @ x[train] + np.eye(x.shape[1]), x[train].T @ targets[train])
    return float(((x[test] @ weights).argmax(1) == graph.y[test]).mean())


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> LocalGraph:
    return small_graphs.on_ranks(one_rank(), common_features(), tmp_path_factory.mktemp("common") / "parts.h5")


def accuracy(graph: LocalGraph, **settings: object) -> float:
    return trainer_of(graph, {"eval_every": 10, "compute": "float32"} | settings).fit()["test_metric_at_best_val"]


def test_with_nothing_set_it_is_as_good_as_ridge_regression(graph):
    """Up to two of 127 test nodes, because other processors round otherwise."""
    assert accuracy(graph) >= of_ridge_regression(common_features()) - 0.016


@pytest.mark.parametrize("model", by_turns(["appnp", "gat", "gcn", "gcnii", "gin", "jknet"]))
def test_other_models_are_almost_as_good(graph, model):
    assert accuracy(graph, model=model) >= of_ridge_regression(common_features()) - 0.05


def test_gin_learns_beside_hubs(tmp_path):
    """Ten nodes have half of all as neighbours. Their rows must not decide on the scale of all, nor the last layer end the
    learning."""
    arrays, hubs = common_features(), np.repeat(np.arange(10), NODES // 2)
    ends = np.stack((hubs, np.random.default_rng(5).integers(0, NODES, hubs.size)))
    edges = np.concatenate((arrays.edge_index, ends, ends[::-1]), axis=1)
    graph = small_graphs.on_ranks(one_rank(), replace(arrays, edge_index=edges), tmp_path / "parts.h5")
    assert accuracy(graph, model="gin") >= of_ridge_regression(arrays) - 0.05


def test_a_file_of_a_run_from_before_gives_the_model_of_before(graph):
    """It names the normalisation that was the default; a file without one has today's."""
    before = {
        "layers": 3,
        "hidden": 16,
        "norm": "layer",
        "dropout": 0.5,
        "lr": 0.01,
        "schedule": "constant",
        "warmup": 0,
    }
    norms = [type(each) for each in trainer_of(graph, before).model.norms]
    assert norms == [torch.nn.LayerNorm] * 2
    for model, norm in (("sage", MeanNorm), ("gin", BatchNorm)):
        assert [type(each) for each in trainer_of(graph, {"hidden": 16, "model": model}).model.norms] == [norm] * 2


def test_models_may_have_defaults_of_their_own():
    """A setting that is given, as in a file of a run from before, stays."""
    made = hpcgnn.RunConfig.from_settings
    assert (made({"model": "sgc"}).train.lr, made({"model": "sgc"}).train.weight_decay) == (0.2, 1e-4)
    assert made({"model": "sgc", "lr": 0.005}).train.lr == 0.005
    assert made({"model": "gat"}).train.weight_decay == 5e-4
    assert (made({}).train.lr, made({"model": "gcn"}).train.weight_decay) == (0.005, 0)
    assert hpcgnn.ModelConfig("hgt").norm_in_use == "mean"
    for model in ("dagnn", "gcnii", "transformer"):
        rates = [made({"model": model} | given).model.dropout for given in ({}, {"dropout": 0.6})]
        assert rates == [0.3, 0.6]
