"""Native models, and distributed PyG models, on P ranks: scores, losses and gradients equal those of one process of PyG."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import distributed, models
from requires import EVERYTHING

from hpcgnn.exchange import Exchange
from hpcgnn.nn.plans import with_self_loops
from hpcgnn.world.thread_world import one_rank

RANKS = (1, 2, 3)
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def test_of_several_self_loops_of_a_node_the_last_ones_weight_counts(tmp_path):
    arrays = small_graphs.random_multigraph(nodes=8, edges=0)
    arrays.edge_index, arrays.weight = np.array([[2, 5, 2, 1], [2, 5, 2, 2]]), np.float32([3, 7, 4, 0.5])
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    plan, degree = with_self_loops(graph.plan("pre", weighted=True), graph, torch.float32)
    loops = plan.local.weight[plan.local.entry_rows() == plan.local.indices]
    assert loops.tolist() == [1, 1, 4, 1, 1, 7, 1, 1]
    assert degree.tolist() == [1, 1, 4.5, 1, 1, 7, 1, 1]


@pytest.fixture(scope="module")
def dropout(folder):
    """The losses of a model on a number of ranks."""
    return functools.cache(lambda name, ranks: ThreadPool(ranks).run(models.dropout, folder, name)[0])


@pytest.mark.parametrize("name", models.CONFIGS)
@pytest.mark.parametrize("ranks", RANKS if EVERYTHING else RANKS[::2])
def test_dropout_is_the_same_on_any_number_of_ranks(dropout, ranks, name):
    losses = dropout(name, ranks)
    assert losses == pytest.approx(dropout(name, 1), rel=1e-12)
    assert losses["training"] != pytest.approx(losses["evaluation"], rel=1e-3)


def test_partial_attention_drops_as_attention_over_the_halo_does(dropout):
    assert dropout("gat, partial, 2 heads", 1) == pytest.approx(dropout("gat, elu", 1), rel=1e-12)


@pytest.mark.parametrize(("name", "least"), [("gat, partial", 30.0), ("gat", 1.1)])
def test_scores_of_attention_do_not_lie_on_the_grid_of_two_bits(folder, monkeypatch, name, least):
    """The log-sum-exp is far from the values of its row, and the score of a rounded row has the error of its values."""
    found = ThreadPool(3).run(models.rounding_errors, folder, name)[0]
    monkeypatch.setattr(Exchange, "is_coarse", False)
    monkeypatch.setattr(Exchange, "for_layer", lambda self, layer, wide_from=None: _for_layer(self, layer))
    on_grid = ThreadPool(3).run(models.rounding_errors, folder, name)[0]
    assert least * found < on_grid


_for_layer = Exchange.for_layer

# Without gin: the bias of a unit of its inner layer that is active for every node has no effect either, and these units change.
WITH_BIASES = ("gcn", "sage", "gat", "gatv2", "jknet", "appnp", "dagnn")


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BIASES)
def test_batch_norm_gives_the_same_scores_on_any_number_of_ranks(folder, name):
    """Rounding errors would move a bias in front of it, and scores would differ by 1 %."""
    one, three = (ThreadPool(ranks).run(models.batch_norm_scores, folder, name)[0] for ranks in (1, 3))
    np.testing.assert_allclose(three, one, rtol=0, atol=1e-4 * np.abs(one).max())


@pytest.mark.parametrize("name", ["gcn", "gin", "gat", "appnp"])
def test_biases_of_older_checkpoints_are_taken_and_rest(folder, name):
    """Their running means are loaded with them. Adam's moments of their steps decay quickly."""
    moved, others = ThreadPool(1).run(models.of_an_older_run, folder, name)[0]
    assert moved <= 0.01  # one step at most
    assert others > 0


@pytest.fixture
def plain():
    """PyG's own models, for 9 features and 4 classes."""
    return distributed.models(9, 4)


@pytest.mark.parametrize("name", distributed.NAMES)
def test_distributed_models_equal_themselves(folder, plain, name):
    cases = [*itertools.product(RANKS, (False, True), ("none", "degree"))]
    for how in cases if EVERYTHING else cases[distributed.NAMES.index(name) % 3 + 2 :: 5]:
        errors = ThreadPool(how[0]).run(distributed.errors, folder, name, *how[1:], plain[name])[0]
        assert max(errors.values()) < TOLERANCE, (how, errors)


@pytest.mark.mpi
def test_distributed_models_on_mpi_ranks_equal_themselves(folder, mpi_ranks, plain):
    for name in distributed.NAMES[:: 1 if EVERYTHING else 3]:
        errors = mpi_ranks(3).run(distributed.errors, folder, name, True, "degree", plain[name])[0]
        assert all(error < TOLERANCE for error in errors.values()), (name, errors)


@pytest.mark.parametrize("ranks", RANKS)
def test_rows_that_do_not_come_are_noticed(folder, plain, ranks):
    with distributed.sabotage():
        arguments = (folder, "sage and gat", True, "none", plain["sage and gat"])
        errors = ThreadPool(ranks).run(distributed.errors, *arguments)[0]
    assert (errors["losses"] > 1e-3) == (ranks > 1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS if EVERYTHING else RANKS[1:2])
def test_a_trainer_trains_distributed_models(folder, plain, ranks):
    """This includes low bit-widths, stale rows and policies."""
    found = ThreadPool(ranks).run(distributed.losses_fall, folder, plain["PyG's GCN"])[0]
    assert found["exact"] < 0.95
    assert found["quantized"] < 0.95
    assert found["quantized, exchanges"] == 6  # three layers, forward and backward
