"""Trainings of P ranks equal those of one process of PyG: losses, first gradients and final scores. That gradients of all models
equal their formula in all ways of running is for ``test_matrix.py`` to say."""

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
from ranks.equivalence import CONFIGS, EPOCHS, LR, PRECISIONS, gradient_error, loss_error, relative
from requires import EVERYTHING

import hpcgnn
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.graph import ORDERS
from hpcgnn.nn import make_aggregator
from hpcgnn.plan import STRATEGIES, build
from hpcgnn.world import World

GRAPHS = ("multigraph", "weighted")  # the last of three or more ranks has no nodes here
RANKS = (1, 2, 3, 4)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
CASES = [
    (3, "weighted", "gcn", "hybrid", "float64"),
    (1, "multigraph", "gcn", "hybrid", "float32"),
    (2, "multigraph", "sage", "pre", "float32"),
    (4, "multigraph", "sage", "post", "float64"),
    (2, "weighted", "gcn-mean-norm", "hybrid", "float64"),
    (3, "multigraph", "sage-batch-norm", "hybrid", "float64"),
    (4, "cora", "gcn", "hybrid", "float32"),
    (2, "cora", "sage-batch-norm", "pre", "float64"),
]
OVER_MPI = [(2, "multigraph", "gcn", "pre", "float64"), (4, "multigraph", "sage", "hybrid", "float64")]
if EVERYTHING:
    OVER_MPI = list(itertools.product(RANKS[1:], ["multigraph"], ("gcn", "sage"), STRATEGIES, ["float64"]))
    CASES = [*itertools.product(RANKS, (*GRAPHS, "cora"), ("gcn", "sage"), STRATEGIES, TOLERANCE), *CASES]


class Files:
    """The graphs, in memory and in parts for each number of ranks, and PyG's results for them."""

    def __init__(self, folder, cora):
        self._folder = folder
        self.parts, self.reference = functools.cache(self._parts), functools.cache(self._reference)
        self.graphs = {
            "multigraph": small_graphs.random_multigraph(),
            "weighted": small_graphs.random_multigraph(weighted=True),
            "cora": small_graphs.from_npz(cora),
        }

    def _parts(self, name, ranks):
        """The path of the parts file."""
        graph, path = self.graphs[name], self._folder / f"{name}-{ranks}.h5"
        empty = ranks - 1 if ranks >= 3 and name in GRAPHS else None
        small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, ranks, empty=empty), ranks)
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_ranks_equal_pyg(files, case):
    check_equal_to_pyg(files, ThreadPool(case[0]), *case[1:])


@pytest.mark.mpi
def test_mpi_ranks_equal_pyg(files, mpi_ranks):
    for ranks, *case in OVER_MPI:
        check_equal_to_pyg(files, mpi_ranks(ranks), *case)


def entries_received(path):
    with h5py.File(path, "r+") as file:
        file.pop("plan", None)
    plan_store.store_plans(path, list(STRATEGIES))
    with PartsFile(path) as parts:
        return StoredPlan(parts, "hybrid").entries()["R"].sum()


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_leave_edges_to_their_senders_equal_pyg(files, monkeypatch, tmp_path, ranks):
    """And plans that are stored in the file equal those that the ranks build."""
    plain, moved = (shutil.copy(files.parts("multigraph", ranks), tmp_path / f"{n}.h5") for n in ("plain", "moved"))
    before = entries_received(plain)
    assert ThreadPool(ranks).run(equivalence.unlike_built_plans, plain) == [[]] * ranks
    whole = build.relieved
    monkeypatch.setattr(build, "relieved", lambda *given: whole(*given[:-1], 1.0))  # each part has too much work
    assert entries_received(moved) < before
    assert ThreadPool(ranks).run(equivalence.unlike_built_plans, moved) == [[]] * ranks
    found, *_ = ThreadPool(ranks).run(equivalence.train, moved, "sage", "hybrid", "float64")[0]
    _, (losses, gradients, _) = files.reference("multigraph", "sage", "float64")
    assert loss_error(found.losses, losses) <= TOLERANCE["float64"]
    assert gradient_error(found.gradients, gradients) <= TOLERANCE["float64"]


def sums_in_orders(world: World, path) -> dict[str, bool]:
    """For each order, whether nodes have moved. Sums and their gradients have the same bits in all orders."""
    loaded, moved = hpcgnn.load(path, world), {}
    x, upstream = torch.randn(2, loaded.num_nodes, 7, generator=torch.Generator().manual_seed(world.rank))
    for method in ORDERS:
        graph, results = loaded.reordered(method, 16), []
        for one in (loaded, graph):
            nodes = torch.arange(one.num_nodes) if one.order.nodes is None else one.order.nodes
            leaf = x[nodes].requires_grad_()
            z = make_aggregator(one, "gcn", "hybrid")(leaf)
            z.backward(upstream[nodes])
            results.append([one.in_loaded_order(values) for values in (z.detach(), leaf.grad)])
        assert all(map(torch.equal, *results)), method
        moved[method] = not torch.equal(graph.original_ids, loaded.original_ids)
    return moved


def test_an_order_moves_nodes_and_keeps_all_bits_of_sums(files):
    found = ThreadPool(3).run(sums_in_orders, files.parts("multigraph", 3))
    assert found == [dict.fromkeys(ORDERS, True)] * 2 + [dict.fromkeys(ORDERS, False)]
