"""Link prediction on P ranks: held-out links, negatives, losses and metrics equal those of the whole graph by PyG and
scikit-learn.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyg_models
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import link_task
from requires import EVERYTHING
from trainings import predicted, refusal

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn import ModelConfig
from hpcgnn.train.predict import read_pairs
from hpcgnn.world.thread_world import one_rank

RANKS = (1, 2, 3) if EVERYTHING else (1, 3)  # the last of three has no nodes


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    return {ranks: ThreadPool(ranks).run(link_task.report, folder)[0] for ranks in RANKS}


@pytest.fixture(params=RANKS)
def report(request, reports):
    return reports[request.param]


def test_loss_and_gradients_equal_pygs(report):
    assert report["loss_error"] < 1e-10
    assert report["gradient_error"] < 1e-10
    assert report["count_error"] == 0


def test_a_model_that_would_see_held_out_links_is_refused(report):
    assert report["refused"]


def test_metrics_equal_scikit_learns_and_ogbs(report):
    for metric, values in report["metrics"].items():
        assert values == pytest.approx(report["wanted_metrics"][metric], rel=1e-12), metric
    assert report["metrics"]["hits@10"] < report["metrics"]["hits@100"]


def test_every_edge_but_loops_is_on_one_side_with_its_other_direction(report):
    sides = [list(map(tuple, side)) for side in report["sides"]]
    edges = [(source, target) for source, target in report["edges"] if source != target]
    assert sum(map(Counter, sides), Counter()) == Counter(edges)
    undirected = [{frozenset(pair) for pair in side} for side in sides]
    assert len(set.union(*undirected)) == sum(map(len, undirected)), "no side has another's"
    shares = [len(side) / sum(map(len, undirected)) for side in undirected]
    assert shares == pytest.approx([0.65, 0.15, 0.2], abs=0.08)


def test_validation_and_test_have_their_own_shares(tmp_path):
    graph = small_graphs.on_ranks(one_rank(), small_graphs.even_graph(300, 4000), tmp_path / "parts.h5")
    split = hpcgnn.split_links(graph, hpcgnn.LinkConfig(link_split=(0.1, 0.4)))
    shares = [part.indices.size / graph.indices.size for part in (split.validation, split.test, split.train)]
    assert shares == pytest.approx([0.1, 0.4, 0.5], abs=0.05)


def test_negatives_are_no_edges_and_as_many_as_asked(report):
    training, *held_out = (set(map(tuple, side)) for side in report["sides"])
    assert set.union(*held_out) & set(map(tuple, report["negatives"][0])), "training knows nothing of held-out links"
    for number, (drawn, links) in enumerate(zip(report["negatives"], report["sides"], strict=True)):
        known = set.union(training, *held_out) if number else training
        assert not known & set(map(tuple, drawn))
        assert all(source != target for source, target in drawn)
        assert 0.95 * 3 * len(links) <= len(drawn) <= 3 * len(links)
        assert len({source for source, _ in drawn}) > 10, "from all of the pool"
        ends = Counter(target for _, target in links)
        assert any(len({source for source, target in drawn if target == one}) > 1 for one in ends if ends[one] == 1)


def test_all_of_it_is_the_same_on_any_number_of_ranks(reports):
    one, *others = reports.values()
    for other in others:
        for name in ("sides", "negatives"):
            assert other[name] == one[name]
        for name, values in one["trained"].items():
            assert other["trained"][name] == pytest.approx(values, rel=1e-9), name
        assert other["reordered"] == pytest.approx(one["trained"]["mlp"], rel=1e-9)
    assert one["trained"]["mlp"][3] < one["trained"]["mlp"][0], "something is learned"


# -- the commands ------------------------------------------------------------------------------------------------------


FLAGS = ["--hidden", "16", "--layers", "2", "--quiet"]
GRAPH = small_graphs.random_multigraph(0, nodes=90, edges=900)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A graph of the same kind with other nodes and edges, and fewer classes."""
    graph = small_graphs.random_multigraph(7, nodes=90, edges=900)
    graph.y %= 1
    return small_graphs.in_parts(tmp_path_factory.mktemp("other") / "parts.h5", graph, 3)


def test_a_job_learns_links_and_scores_pairs_of_another_graph(train, other, mpi_ranks, tmp_path):
    flags = ["--task", "link", "--metric", "hits@10", "--decoder", "mlp", "--link-split", 0.1, 0.2]
    whole = tmp_path / "whole"
    train("whole", *flags, "--epochs", 3)
    assert "was made with --link-seed 0, not 5" in refusal(train("whole", "--resume", "--link-seed", 5, check=False))

    pairs = np.array([[0, 1], [5, 60], [89, 3]])
    np.savetxt(tmp_path / "pairs.txt", pairs, "%d")
    np.save(tmp_path / "pairs.npy", pairs)
    rows = torch.from_numpy(predicted(mpi_ranks(2), other, whole, dataset="embeddings"))
    assert rows.shape == (90, 16)
    state = torch.load(whole / "checkpoints" / "best.pt", weights_only=True)["model"]
    hidden = (rows[pairs[:, 0]] * rows[pairs[:, 1]]) @ state["decoder.hidden.weight"] + state["decoder.hidden.bias"]
    wanted = (hidden.relu() @ state["decoder.out.weight"] + state["decoder.out.bias"])[:, 0].numpy()
    for ranks, given in ((1, "pairs.txt"), (3, "pairs.npy")):
        found = predicted(mpi_ranks(ranks), other, whole, "--pairs", tmp_path / given, dataset="pair_scores")
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_scores_of_another_graph_are_those_of_its_own_features_and_edges(train, other, mpi_ranks, tmp_path):
    """Inductive prediction: a GCN trained on one graph, applied to another one by PyG. Pairs need a model of links."""
    train("run", "--model", "gcn", "--norm", "layer", "--epochs", 3)
    (tmp_path / "pairs.txt").write_text("0 1\n")
    of_pairs = ["predict", other, tmp_path / "run", "--out", tmp_path / "scores.h5", "--pairs", tmp_path / "pairs.txt"]
    assert "train with --task link" in refusal(mpi_ranks(2).command(*of_pairs, check=False))
    assert not (tmp_path / "scores.h5").exists()
    found = predicted(mpi_ranks(3), other, tmp_path / "run")
    state = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)["model"]
    graph = small_graphs.random_multigraph(7, nodes=90, edges=900)
    config = ModelConfig(model="gcn", hidden=16, layers=2, norm="layer")
    model = pyg_models.reference(config, graph.x.shape[1], 4, state).float()
    wanted = model(torch.from_numpy(graph.x), torch.from_numpy(graph.edge_index), None).detach().numpy()
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def npy_without_a_header() -> bytes:
    with io.BytesIO() as file:
        np.save(file, np.array([[0, 1], [2, 3]]))
        content = bytearray(file.getvalue())
    content[42:128] = bytes(86)
    return bytes(content)


WRONG = [
    ("pairs.npy", npy_without_a_header(), "cannot read pairs from"),
    *(("pairs.txt", content, "must hold two node ids in each line") for content in (b"", b"\n", b"# nothing\n")),
    ("pairs.txt", "0 1\n2 3\n".encode("utf-16"), "is text in UTF-16"),
    ("pairs.txt", None, "it is not a file"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), WRONG)
def test_what_is_no_file_of_pairs_is_one_sentence(tmp_path, recwarn, name, content, sentence):
    path = tmp_path / name
    os.mkfifo(path) if content is None else path.write_bytes(content)
    with pytest.raises(HpcgnnError, match=sentence) as refused:
        read_pairs(one_rank(), path)
    assert str(path) in str(refused.value)
    assert not recwarn.list


def test_pairs_may_have_a_byte_order_mark(tmp_path):
    (tmp_path / "pairs.txt").write_text("0 1\n2 3\n", encoding="utf-8-sig")
    assert read_pairs(one_rank(), tmp_path / "pairs.txt").tolist() == [[0, 1], [2, 3]]
