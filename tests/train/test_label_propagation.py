"""Label propagation: P ranks equal one process of PyG, labels of evaluated nodes do not leak, and a run can be resumed."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyg_reference
import pytest
import scipy.sparse as sp
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import label_propagation as programs
from ranks.equivalence import EPOCHS, LR, PRECISIONS, gradient_error, relative
from ranks.label_propagation import SEED
from requires import EVERYTHING
from trainings import losses, predicted, weights

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.layers import LabelEmbedding
from hpcgnn.train.config import LabelPropagationConfig
from hpcgnn.train.tasks import check_labels, drawn_nodes

RANKS = (1, 2, 4)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
CASES = [  # graph/model/draw/precision
    *(f"plain/{m}/{draw}/{p}" for m in ("gcn", "gcn-narrow", "sage") for draw in ("epoch", "once") for p in TOLERANCE),
    *(f"{graph}/{m}/epoch/float64" for graph in ("few", "multi-label") for m in ("gcn", "sage")),
    "cora/sage/epoch/float32",
]

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


def test_redraw_once_keeps_the_nodes():
    ids = torch.arange(1000)
    once, anew = (LabelPropagationConfig(0.5, redraw) for redraw in ("once", "epoch"))
    assert all(torch.equal(drawn_nodes(once, 0, epoch, ids), drawn_nodes(once, 0, 0, ids)) for epoch in range(5))
    assert not torch.equal(drawn_nodes(anew, 0, 0, ids), drawn_nodes(anew, 0, 1, ids))


# -- the embedding ----------------------------------------------------------------------------------------------------


def test_a_model_with_label_inputs_wants_labels():
    with pytest.raises(ValueError, match="takes labels"):
        LabelEmbedding(3, 5)(torch.randn(2, 5), None)


# -- on ranks ---------------------------------------------------------------------------------------------------------


class Files:
    """The graphs, in memory and in parts for each number of ranks, and PyG's results for them."""

    def __init__(self, folder, cora):
        plain, few, multi = (small_graphs.random_multigraph(seed=seed) for seed in (0, 1, 2))
        multi.y = np.random.default_rng(3).integers(0, 2, (multi.num_nodes, 5)).astype(np.uint8)
        self._folder = folder
        self._graphs = {"plain": plain, "few": few, "multi-label": multi, "cora": small_graphs.from_npz(cora)}
        self.parts, self.reference = functools.cache(self._parts), functools.cache(self._reference)

    def graph(self, name, ranks):
        """The graph ``few`` has all its training nodes on rank 0."""
        graph = self._graphs[name]
        if name != "few":
            return graph
        on_first = small_graphs.random_parts(graph.num_nodes, ranks) == 0
        return replace(graph, masks=graph.masks | {"train_mask": graph.masks["train_mask"] & on_first})

    def _parts(self, name, ranks):
        """The path; the last of three or more ranks has no nodes in the random graphs."""
        graph, path = self.graph(name, ranks), self._folder / f"{name}-{ranks}.h5"
        empty = ranks - 1 if ranks >= 3 and name not in ("cora", "few") else None
        small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, ranks, empty=empty), ranks)
        return path

    def _reference(self, case, ranks):
        """The initial weights, and PyG's results."""
        name, model, draw, precision = case.split("/")
        if name != "few" and ranks > 1:
            return self.reference(case, 1)
        graph, config, dtype = self.graph(name, ranks), programs.CONFIGS[model], PRECISIONS[precision][0]
        state = ThreadPool(ranks).run(programs.initial_weights, self.parts(name, ranks), model, precision)[0]
        drawn = functools.partial(drawn_nodes, programs.DRAWS[draw], SEED, ids=torch.arange(graph.num_nodes))
        return state, pyg_reference.train(graph, config, state, EPOCHS, LR, dtype, drawn)


@pytest.fixture(scope="module")
def files(tmp_path_factory, shared_data):
    return Files(tmp_path_factory.mktemp("labels"), shared_data("cora.npz"))


def loss_error(found, wanted):
    """The loss is 0 in an epoch in which all labels are inputs."""
    return float(np.max([abs(a - b) / (abs(b) or 1) for a, b in zip(found, wanted, strict=True)]))


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


# The number of ranks by turns
BY_TURNS = [(ranks, case) for turn, case in enumerate(CASES) for ranks in (RANKS if EVERYTHING else [RANKS[turn % 3]])]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "case"), BY_TURNS)
def test_ranks_equal_pyg(files, ranks, case):
    """Four ranks have few training nodes, so some epochs use all of them as inputs; these must change nothing."""
    name, *how = case.split("/")
    found, begun = ThreadPool(ranks).run(programs.train, files.parts(name, ranks), *how)[0]
    state, (wanted_losses, wanted_gradients, wanted_scores) = files.reference(case, ranks)
    tolerance = TOLERANCE[case.rpartition("/")[2]]
    assert all(torch.equal(begun[key], value) for key, value in state.items())
    assert loss_error(found.losses, wanted_losses) <= tolerance
    assert "embed_labels.weight" in wanted_gradients
    assert gradient_error(found.gradients, wanted_gradients) <= tolerance
    # After 20 optimiser steps, which magnify rounding errors.
    assert relative(found.scores, wanted_scores) <= 10 * tolerance


def test_with_dropout_any_number_of_ranks_is_the_same(files):
    one, *others = (ThreadPool(ranks).run(programs.dropout_losses, files.parts("plain", ranks))[0] for ranks in RANKS)
    for other in others:
        assert other == pytest.approx(one, rel=1e-10)


@pytest.mark.parametrize("sabotage", ["no-backward", "drawn by position", "mean of the ranks' means"])
@pytest.mark.parametrize("ranks", RANKS[1 if EVERYTHING else 2 :])
def test_what_is_broken_is_noticed(files, ranks, sabotage):
    _, (wanted, _, _) = files.reference("plain/sage/epoch/float64", ranks)
    with programs.sabotage(sabotage):
        arguments = (files.parts("plain", ranks), "sage", "epoch", "float64")
        found, _ = ThreadPool(ranks).run(programs.train, *arguments)[0]
    assert loss_error(found.losses, wanted) > 100 * TOLERANCE["float32"]


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


def test_an_epoch_in_which_all_labels_are_given_changes_nothing(train, tmp_path):
    """This happens at random if there are few training nodes: here there is one, which is drawn in most epochs."""
    graph = small_graphs.random_multigraph()
    graph.masks["train_mask"] = np.arange(graph.num_nodes) == 3
    small_graphs.in_parts(tmp_path / "parts.h5", graph, 2)
    train("run", "--epochs", 12, "--label-propagation", 0.8, graph=tmp_path / "parts.h5")
    given = [bool(drawn_nodes(LabelPropagationConfig(0.8), 0, epoch, torch.tensor([3]))) for epoch in range(12)]
    assert [loss is None for loss in losses(tmp_path / "run")] == given
    assert {*given} == {True, False}


def test_a_graph_without_labels_is_refused_with_two_ways_out():
    with pytest.raises(
        HpcgnnError, match=r"p.h5 has no labels, .* --labels random:C to measure times only, or use --task link"
    ):
        check_labels(SimpleNamespace(y=None, path="p.h5"))
