"""P ranks equal one process of PyG: losses, gradients and scores, for every strategy and model.

All cases run on ranks that are threads, and those that concern communication also on MPI.
"""

from __future__ import annotations

import functools
import itertools
import shutil

import h5py
import pyg_reference
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import equivalence
from ranks.equivalence import CONFIGS, EPOCHS, LR, ORDERED, PRECISIONS, gradient_error, loss_error, relative
from requires import EVERYTHING

from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.graph import METHODS
from hpcgnn.plan import STRATEGIES, build

GRAPHS = ("multigraph", "weighted")  # the last of three or more ranks has no nodes here
RANKS = (1, 2, 3, 4)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
CASES = list(itertools.product(RANKS, GRAPHS, ("gcn", "sage"), STRATEGIES, TOLERANCE))
WITH_NORMS = list(itertools.product(RANKS, GRAPHS, ["sage-batch-norm", "gcn-mean-norm"], ["hybrid"], TOLERANCE))
ON_CORA = [(ranks, "cora", *others) for ranks, _, *others in CASES + WITH_NORMS]
OVER_MPI = list(itertools.product(RANKS[1:], ["multigraph"], ("gcn", "sage"), STRATEGIES, ["float64"]))
if not EVERYTHING:
    CASES, WITH_NORMS = CASES[::5], WITH_NORMS[::5]  # every fifth case: those of CASES have each pair of values
    ON_CORA = [(4, "cora", "gcn", "hybrid", "float32"), (3, "cora", "sage", "pre", "float64")]
    ON_CORA += [(2, "cora", "sage-batch-norm", "hybrid", "float64")]
    OVER_MPI = OVER_MPI[1::4]
CASES += WITH_NORMS


class Files:
    """The graphs, in memory and in parts for each number of ranks, and PyG's results for them."""

    def __init__(self, folder, cora):
        cut = small_graphs.random_multigraph(seed=2)
        self._folder = folder
        self.parts, self.reference = functools.cache(self._parts), functools.cache(self._reference)
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
        elif ranks >= 3 and name in GRAPHS:
            part = small_graphs.random_parts(graph.num_nodes, ranks, empty=ranks - 1)
        small_graphs.write_parts(path, graph, part, ranks)
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
    """Compare with PyG, and check that rows of the strategy's kinds travel."""
    case = (pool.size, graph, model, strategy, precision)
    found, rows, begun = pool.run(equivalence.train, files.parts(graph, pool.size), model, strategy, precision)[0]
    state, wanted = files.reference(graph, model, precision)
    assert begun.keys() == state.keys(), case
    assert all(torch.equal(begun[name], value) for name, value in state.items()), case
    assert loss_error(found.losses, wanted[0]) <= TOLERANCE[precision], case
    assert gradient_error(found.gradients, wanted[1]) <= TOLERANCE[precision], case
    # Scores come after 20 optimiser steps, which magnify rounding errors.
    assert relative(found.scores, wanted[2]) <= 10 * TOLERANCE[precision], case
    if pool.size > 1:
        assert (rows["post"] > 0, rows["pre"] > 0) == (strategy != "pre", strategy != "post"), case


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_equal_pyg(files, ranks):
    for _, *case in (case for case in CASES if case[0] == ranks):
        check_equal_to_pyg(files, ThreadPool(ranks), *case)


@pytest.mark.mpi
def test_mpi_ranks_equal_pyg(files, mpi_ranks):
    for ranks, *case in OVER_MPI:
        check_equal_to_pyg(files, mpi_ranks(ranks), *case)


@pytest.mark.slow
def test_ranks_equal_pyg_on_cora(files):
    for ranks, *case in ON_CORA:
        check_equal_to_pyg(files, ThreadPool(ranks), *case)


# Only from four ranks on does a rank have two peers to swap, because the last rank has no nodes.
SABOTAGES = [*itertools.product(RANKS[1:], ("zeroed", "no-backward")), (4, "swapped")]
BROKEN = ("sage", "hybrid", "float64")


def test_a_broken_exchange_is_noticed(files):
    _, wanted = files.reference("multigraph", "sage", "float64")
    for ranks, name in SABOTAGES:
        with equivalence.sabotage(name):  # of all threads
            trained = ThreadPool(ranks).run(equivalence.train, files.parts("multigraph", ranks), *BROKEN)[0]
        assert loss_error(trained[0].losses, wanted[0]) > 100 * TOLERANCE["float32"]


@pytest.mark.mpi
def test_a_broken_exchange_over_mpi_is_noticed(files, mpi_ranks):
    _, wanted = files.reference("multigraph", "sage", "float64")
    for ranks, name in ((2, "zeroed"), (4, "swapped")):
        arguments = (files.parts("multigraph", ranks), *BROKEN)
        trained = mpi_ranks(ranks).run(equivalence.sabotaged, name, equivalence.train, *arguments)[0]
        assert loss_error(trained[0].losses, wanted[0]) > 100 * TOLERANCE["float32"]


@pytest.mark.slow
def test_plans_stored_in_the_file_equal_those_the_ranks_build(files):
    for ranks, graph in itertools.product(RANKS, GRAPHS):
        path = files.parts(graph, ranks)
        plan_store.store_plans(path, list(STRATEGIES))
        assert ThreadPool(ranks).run(equivalence.unlike_built_plans, path) == [[]] * ranks, graph


def entries_received(path):
    with h5py.File(path, "r+") as file:
        file.pop("plan", None)
    plan_store.store_plans(path, list(STRATEGIES))
    with PartsFile(path) as parts:
        return StoredPlan(parts, "hybrid").entries()["R"].sum()


def test_ranks_that_leave_edges_to_their_senders_equal_pyg(files, monkeypatch, tmp_path):
    whole = build.relieved
    for ranks, graph in itertools.product(RANKS[1:], GRAPHS):
        plain, moved = (shutil.copy(files.parts(graph, ranks), tmp_path / f"{name}.h5") for name in ("plain", "moved"))
        before = entries_received(plain)
        with monkeypatch.context() as patched:
            patched.setattr(build, "relieved", lambda *given: whole(*given[:-1], 1.0))  # each part has too much work
            assert entries_received(moved) < before
            assert ThreadPool(ranks).run(equivalence.unlike_built_plans, moved) == [[]] * ranks
        found, *_ = ThreadPool(ranks).run(equivalence.train, moved, "sage", "hybrid", "float64")[0]
        _, (losses, gradients, _) = files.reference(graph, "sage", "float64")
        assert loss_error(found.losses, losses) <= TOLERANCE["float64"], (ranks, graph)
        assert gradient_error(found.gradients, gradients) <= TOLERANCE["float64"], (ranks, graph)


IN_ORDERS = [(3, "multigraph"), (1, "weighted"), (3, "cut"), (4, "cora")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "graph"), [*itertools.product(RANKS, (*GRAPHS, "cora", "cut"))] if EVERYTHING else IN_ORDERS
)
def test_no_node_order_changes_what_is_found(files, ranks, graph):
    """This includes parts without nodes (in the random graphs) and parts without local edges (in the cut graph)."""
    results = ThreadPool(ranks).run(equivalence.node_orders, files.parts(graph, ranks))[0]
    for model, method in itertools.product(ORDERED, METHODS):
        found = results[model][method]
        assert found["same_bits"], method  # of every row of every aggregation, forward and backward
        assert found["same_edges"], method
        # Products of all rows and sums over nodes are rounded differently.
        assert found["loss_error"] <= 1e-10, (model, method)
        assert found["gradient_error"] <= 1e-10, (model, method)
        assert found["score_error"] <= 1e-9, (model, method)
        if graph != "cut" and method not in ("none", "auto"):
            assert found["ranks_moved"] >= max(1, ranks - 1), method
