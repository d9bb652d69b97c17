"""Native models on ranks with batch norms, self-loops and few bits, and trainings of distributed models of PyG's layers."""

from __future__ import annotations

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
@pytest.mark.parametrize("name", WITH_BIASES if EVERYTHING else ("gcn", "gat", "jknet", "appnp"))
def test_batch_norm_gives_the_same_scores_on_any_number_of_ranks(folder, name):
    """Rounding errors would move a bias in front of it, and scores would differ by 1 %."""
    one, three = (ThreadPool(ranks).run(models.batch_norm_scores, folder, name)[0] for ranks in (1, 3))
    np.testing.assert_allclose(three, one, rtol=0, atol=1e-4 * np.abs(one).max())


@pytest.mark.parametrize("name", ["gin", "gat"])
def test_biases_of_older_checkpoints_are_taken_and_rest(folder, name):
    """Their running means are loaded with them. Adam's moments of their steps decay quickly."""
    moved, others = ThreadPool(1).run(models.of_an_older_run, folder, name)[0]
    assert moved <= 0.01  # one step at most
    assert others > 0


@pytest.mark.slow
def test_a_trainer_trains_distributed_models(tmp_path):
    """This includes low bit-widths, stale rows and policies."""
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(weighted=True), 2)
    found = ThreadPool(2).run(distributed.losses_fall, path, distributed.models(9, 4)["PyG's GCN"])[0]
    assert found["exact"] < 0.95
    assert found["quantized"] < 0.95
    assert found["quantized, exchanges"] == 6  # three layers, forward and backward
