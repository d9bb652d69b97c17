"""Label propagation: P ranks equal one process of PyG, labels of evaluated nodes do not leak, and a run can be resumed."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pyg_reference
import pytest
import scipy.sparse as sp
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import label_propagation as programs
from ranks.equivalence import EPOCHS, LR, gradient_error, relative
from ranks.label_propagation import SEED
from trainings import losses, predicted, weights

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train.config import LabelPropagationConfig
from hpcgnn.train.tasks import check_labels, drawn_nodes

RANKS, TOLERANCE = (1, 2, 4), 1e-10
CASES = [  # ranks, graph, model and draw
    (1, "plain", "sage", "epoch"), (2, "plain", "gcn", "once"), (4, "plain", "sage", "epoch"),
    (4, "plain", "gcn-narrow", "once"), (2, "few", "sage", "epoch"), (4, "few", "gcn", "epoch"),
    (2, "multi-label", "gcn", "epoch"), (4, "multi-label", "sage", "once"),
]  # fmt: skip

# -- the choice of labels ----------------------------------------------------------------------------------------------


def test_the_draw_is_a_function_of_seed_epoch_and_original_id():
    config, ids = LabelPropagationConfig(0.62), torch.arange(10000)
    drawn = drawn_nodes(config, 1, 2, ids)
    assert drawn.double().mean() == pytest.approx(0.62, abs=0.015)
    order = torch.randperm(ids.numel())
    assert torch.equal(drawn_nodes(config, 1, 2, ids[order]), drawn[order])
    # Independent draws sometimes agree by chance.
    for other in (drawn_nodes(config, 2, 2, ids), drawn_nodes(config, 1, 3, ids)):
        assert (other == drawn).double().mean() == pytest.approx(0.62**2 + 0.38**2, abs=0.02)


# -- on ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "sparse", "zeros"])
def test_the_embedding_begins_at_the_scale_of_the_features(tmp_path, form):
    """Dense or sparse features, on any number of ranks; features that are all 0 have no scale."""
    graph, found = small_graphs.random_multigraph(), []
    graph.x = graph.x * np.float32(0 if form == "zeros" else 7)
    wanted = float(np.sqrt(np.square(graph.x, dtype=np.float64).mean())) or 1.0
    if form == "sparse":
        graph.x = sp.csr_array(graph.x)
    for ranks in RANKS:
        path = small_graphs.in_parts(tmp_path / f"{ranks}.h5", graph, ranks)
        state = ThreadPool(ranks).run(programs.initial_weights, path, "gcn", "float64")[0]
        found.append(state["embed_labels.weight"])
    assert all(torch.equal(found[0], each) for each in found)
    bound = 3**0.5 * wanted  # of a uniform distribution with this root mean square
    assert 0.8 * bound < float(found[0].abs().max()) <= bound


def graph_of(name, ranks):
    """The graph, and the part of each node: the last of four ranks has no nodes. ``few`` has its training nodes on rank 0."""
    graph = small_graphs.random_multigraph(seed=("plain", "few", "multi-label").index(name))
    part = small_graphs.with_an_empty_part(graph, ranks)
    if name == "multi-label":
        graph.y = np.random.default_rng(3).integers(0, 2, (graph.num_nodes, 5)).astype(np.uint8)
    if name == "few":
        graph.masks["train_mask"] &= part == 0
    return graph, part


@pytest.mark.parametrize(("ranks", "name", "model", "draw"), CASES)
def test_ranks_equal_pyg(tmp_path, ranks, name, model, draw):
    """With few training nodes, some epochs use all of them as inputs; these must change nothing, and their loss is 0."""
    graph, part = graph_of(name, ranks)
    small_graphs.write_parts(tmp_path / "parts.h5", graph, part, ranks)
    found, state = ThreadPool(ranks).run(programs.train, tmp_path / "parts.h5", model, draw, "float64")[0]
    drawn = functools.partial(drawn_nodes, programs.DRAWS[draw], SEED, ids=torch.arange(graph.num_nodes))
    losses, gradients, scores = pyg_reference.train(
        graph, programs.CONFIGS[model], state, EPOCHS, LR, torch.float64, drawn
    )
    assert max(abs((a or 0.0) - b) / (abs(b) or 1) for a, b in zip(found.losses, losses, strict=True)) <= TOLERANCE
    assert "embed_labels.weight" in gradients
    assert gradient_error(found.gradients, gradients) <= TOLERANCE
    assert relative(found.scores, scores) <= 10 * TOLERANCE  # optimiser steps magnify rounding errors


# -- the commands -----------------------------------------------------------------------------------------------------

FLAGS = ["--hidden", "16", "--layers", "2", "--label-propagation", "0.62", "--quiet"]


def test_no_evaluated_label_leaks(train, mpi_ranks, parts, tmp_path):
    """Other labels of all validation and test nodes change no loss, weight or score."""
    changed, graph = tmp_path / "changed.h5", small_graphs.random_multigraph(nodes=300, edges=3000)
    graph.y = np.where(graph.masks["train_mask"], graph.y, (graph.y + 1) % 4)
    small_graphs.in_parts(changed, graph, 2)
    scores = []
    for name, path in (("usual", parts), ("changed", changed)):
        train(name, "--epochs", 8, graph=path)
        scores.append(predicted(mpi_ranks(2), path, tmp_path / name, "--checkpoint", "last"))
    assert losses(tmp_path / "usual") == losses(tmp_path / "changed")
    assert weights(tmp_path / "usual") == weights(tmp_path / "changed")
    np.testing.assert_array_equal(*scores)


def test_a_graph_without_labels_is_refused_with_two_ways_out():
    with pytest.raises(
        HpcgnnError, match=r"p.h5 has no labels, .* --labels random:C to measure times only, or use --task link"
    ):
        check_labels(SimpleNamespace(y=None, path="p.h5"))
