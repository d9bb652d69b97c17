"""P ranks equal one process of PyG: losses, gradients and scores, for every strategy and model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcgnn.node_order import METHODS

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parent / "ranks" / "equivalence.py"
GRAPHS = ("multigraph", "weighted", "cora")
RANKS = tuple(map(int, os.environ.get("HPCGNN_TEST_RANKS", "1 2 3 4").split()))
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


@pytest.fixture(scope="module")
def reports(tmp_path_factory, mpirun, shared_data):
    """One launch per number of ranks; every test below looks at its own numbers in the reports."""
    folder = tmp_path_factory.mktemp("equivalence")
    cora = shared_data("cora.npz")
    found = {}
    for ranks in RANKS:
        path = folder / f"report-{ranks}.json"
        mpirun(ranks, [PROGRAM, path, folder, cora], timeout_seconds=600)
        found[ranks] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("strategy", ["pre", "post", "hybrid"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_equal_pyg(reports, ranks, graph, model, strategy, precision):
    found = reports[ranks][f"{graph}/{model}/{strategy}/{precision}"]
    assert found["loss_error"] <= TOLERANCE[precision]
    assert found["gradient_error"] <= TOLERANCE[precision]
    # scores come after 20 optimiser steps, which magnify rounding
    assert found["score_error"] <= 10 * TOLERANCE[precision]
    if ranks > 1:
        assert (found["post_rows"] > 0) == (strategy != "pre")
        assert (found["pre_rows"] > 0) == (strategy != "post")


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_batch_norm_uses_the_statistics_of_all_ranks(reports, ranks, graph, precision):
    found = reports[ranks][f"{graph}/sage-batch-norm/hybrid/{precision}"]
    assert found["loss_error"] <= TOLERANCE[precision]
    assert found["gradient_error"] <= TOLERANCE[precision]


@pytest.mark.parametrize("model", ["gcn-dropout", "sage-dropout"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_dropout_is_the_same_for_any_number_of_ranks(reports, graph, model):
    key = f"{graph}/{model}"
    for ranks in RANKS[1:]:
        assert reports[ranks][key] == pytest.approx(reports[1][key], rel=1e-10)


@pytest.mark.parametrize(
    ("ranks", "sabotage"),
    [*((ranks, name) for ranks in RANKS[1:] for name in ("zeroed", "no-backward")), (4, "swapped")],
)
def test_a_broken_exchange_is_noticed(reports, ranks, sabotage):
    """A rank has two peers to swap only from four ranks on, because the last of them is empty."""
    assert reports[ranks]["sabotage"][sabotage] > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", RANKS)
def test_plans_stored_in_the_file_equal_those_the_ranks_build(reports, ranks, graph):
    assert reports[ranks][f"{graph}/stored"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["gcn-dropout", "sage-batch-norm"])
@pytest.mark.parametrize("graph", [*GRAPHS, "cut"])
@pytest.mark.parametrize("ranks", RANKS)
def test_no_node_order_changes_what_is_found(reports, ranks, graph, model, method):
    """Also where a part is empty, in the random graphs, or has no edge of its own, in the cut one."""
    found = reports[ranks][f"{graph}/{model}/orders"][method]
    assert found["same_bits"]  # of every row of every aggregation, forward and backward
    assert found["same_edges"]
    # products of all rows and sums over nodes are rounded differently
    assert found["loss_error"] <= 1e-10
    assert found["gradient_error"] <= 1e-10
    assert found["score_error"] <= 1e-9
    if graph != "cut" and method not in ("none", "auto"):
        assert found["ranks_moved"] >= max(1, ranks - 1)
