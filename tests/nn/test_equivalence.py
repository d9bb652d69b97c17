"""P ranks equal one process of PyG: losses, gradients and scores, for every strategy and model.

All cases run on ranks that are threads, and those that concern communication also on MPI.
"""

from __future__ import annotations

import functools

import pyg_reference
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import equivalence
from ranks.equivalence import CONFIGS, EPOCHS, LR, ORDERED, PRECISIONS, gradient_error, loss_error, relative

from hpcgnn.data import plan_store
from hpcgnn.node_order import METHODS
from hpcgnn.plan import STRATEGIES

RANDOM_GRAPHS = ("multigraph", "weighted")  # the last of three or more ranks has no nodes here
GRAPHS = (*RANDOM_GRAPHS, pytest.param("cora", marks=pytest.mark.slow))
RANKS = (1, 2, 3, 4)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


class Files:
    """The graphs, in memory and in parts for each number of ranks, and PyG's results for them."""

    def __init__(self, folder, cora):
        cut = small_graphs.random_multigraph(seed=2)
        self._folder = folder
        self.parts, self.with_plans, self.reference = map(
            functools.cache, (self._parts, self._with_plans, self._reference)
        )
        self.graphs = {
            "multigraph": small_graphs.random_multigraph(),
            "weighted": small_graphs.random_multigraph(weighted=True),
            "cora": small_graphs.from_npz(cora),
            "cut": cut,
        }

    def _parts(self, name, ranks):
        """The path of the parts file."""
        graph, path = self.graphs[name], self._folder / f"{name}-{ranks}.h5"
        part = small_graphs.random_parts(graph.num_nodes, ranks)
        if name == "cut":
            graph = small_graphs.without_local_edges(graph, part)
        elif ranks >= 3 and name in RANDOM_GRAPHS:
            part = small_graphs.random_parts(graph.num_nodes, ranks, empty=ranks - 1)
        small_graphs.write_parts(path, graph, part, ranks)
        return path

    def _with_plans(self, name, ranks):
        """The path of a parts file with all plans."""
        path = self.parts(name, ranks)
        plan_store.store_plans(path, list(STRATEGIES))
        return path

    def _reference(self, name, model, precision):
        """The initial weights, and the results of PyG."""
        (state,) = ThreadPool(1).run(equivalence.initial_weights, self.parts(name, 1), model, precision)
        dtype, _ = PRECISIONS[precision]
        return state, pyg_reference.train(self.graphs[name], CONFIGS[model], state, EPOCHS, LR, dtype)


@pytest.fixture(scope="module")
def files(tmp_path_factory, shared_data):
    return Files(tmp_path_factory.mktemp("equivalence"), shared_data("cora.npz"))


def check_equal_to_pyg(files, pool, graph, model, strategy, precision):
    """Compare with PyG, and return the number of rows that travel."""
    arguments = (files.parts(graph, pool.size), model, strategy, precision)
    found, rows, begun = pool.run(equivalence.train, *arguments)[0]
    state, wanted = files.reference(graph, model, precision)
    assert begun.keys() == state.keys()
    assert all(torch.equal(begun[name], value) for name, value in state.items())
    assert loss_error(found.losses, wanted[0]) <= TOLERANCE[precision]
    assert gradient_error(found.gradients, wanted[1]) <= TOLERANCE[precision]
    # Scores come after 20 optimiser steps, which magnify rounding errors.
    assert relative(found.scores, wanted[2]) <= 10 * TOLERANCE[precision]
    return rows


def check_rows(rows, ranks, strategy):
    if ranks > 1:
        assert (rows["post"] > 0) == (strategy != "pre")
        assert (rows["pre"] > 0) == (strategy != "post")


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_equal_pyg(files, ranks, graph, model, strategy, precision):
    check_rows(check_equal_to_pyg(files, ThreadPool(ranks), graph, model, strategy, precision), ranks, strategy)


@pytest.mark.mpi
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("ranks", RANKS)
def test_mpi_ranks_equal_pyg(files, mpi_ranks, ranks, model, strategy):
    check_rows(check_equal_to_pyg(files, mpi_ranks(ranks), "multigraph", model, strategy, "float64"), ranks, strategy)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_batch_norm_uses_the_statistics_of_all_ranks(files, ranks, graph, precision):
    check_equal_to_pyg(files, ThreadPool(ranks), graph, "sage-batch-norm", "hybrid", precision)


@pytest.mark.parametrize("model", ["gcn-dropout", "sage-dropout"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_dropout_is_the_same_for_any_number_of_ranks(files, graph, model):
    one, *others = (
        ThreadPool(ranks).run(equivalence.dropout_losses, files.parts(graph, ranks), model)[0] for ranks in RANKS
    )
    for losses in others:
        assert losses == pytest.approx(one, rel=1e-10)


SABOTAGES = [*((ranks, name) for ranks in RANKS[1:] for name in ("zeroed", "no-backward")), (4, "swapped")]


@pytest.mark.parametrize(("ranks", "sabotage"), SABOTAGES)
def test_a_broken_exchange_is_noticed(files, ranks, sabotage):
    """Only from four ranks on does a rank have two peers to swap, because the last rank has no nodes."""
    with equivalence.sabotage(sabotage):
        arguments = (files.parts("multigraph", ranks), "sage", "hybrid", "float64")
        found, _, _ = ThreadPool(ranks).run(equivalence.train, *arguments)[0]
    _, wanted = files.reference("multigraph", "sage", "float64")
    assert loss_error(found.losses, wanted[0]) > 100 * TOLERANCE["float32"]


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "sabotage"), SABOTAGES)
def test_a_broken_exchange_over_mpi_is_noticed(files, mpi_ranks, ranks, sabotage):
    arguments = (files.parts("multigraph", ranks), "sage", "hybrid", "float64")
    found, _, _ = mpi_ranks(ranks).run(equivalence.sabotaged, sabotage, equivalence.train, *arguments)[0]
    _, wanted = files.reference("multigraph", "sage", "float64")
    assert loss_error(found.losses, wanted[0]) > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_plans_stored_in_the_file_equal_those_the_ranks_build(files, ranks, graph):
    path = files.with_plans(graph, ranks)
    assert ThreadPool(ranks).run(equivalence.unlike_built_plans, path) == [[]] * ranks


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", RANKS)
def test_plans_stored_in_the_file_equal_those_that_mpi_ranks_build(files, mpi_ranks, ranks):
    path = files.with_plans("multigraph", ranks)
    assert mpi_ranks(ranks).run(equivalence.unlike_built_plans, path) == [[]] * ranks


@pytest.fixture(scope="module")
def in_node_orders(files):
    """The results of training in all node orders, by graph and number of ranks."""
    return functools.cache(
        lambda graph, ranks: ThreadPool(ranks).run(equivalence.node_orders, files.parts(graph, ranks))[0]
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ORDERED)
@pytest.mark.parametrize("graph", [*GRAPHS, "cut"])
@pytest.mark.parametrize(
    "ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_no_node_order_changes_what_is_found(in_node_orders, ranks, graph, model, method):
    """This includes parts without nodes (in the random graphs) and parts without local edges (in the cut graph)."""
    found = in_node_orders(graph, ranks)[model][method]
    assert found["same_bits"]  # of every row of every aggregation, forward and backward
    assert found["same_edges"]
    # Products of all rows and sums over nodes are rounded differently.
    assert found["loss_error"] <= 1e-10
    assert found["gradient_error"] <= 1e-10
    assert found["score_error"] <= 1e-9
    if graph != "cut" and method not in ("none", "auto"):
        assert found["ranks_moved"] >= max(1, ranks - 1)
