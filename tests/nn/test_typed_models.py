"""Models on graphs whose nodes have types: PyG's scores and gradients on any number of ranks, learned rows of nodes included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from command_line import refusal, said
from ranks import typed_models
from virtual_clusters import hpcgnn as hpcgnn_command

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.data.schema import GraphMeta, NodeType
from hpcgnn.nn.typed_input import embedded_types
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world.thread_world import on_threads


def test_dropout_of_features_by_type_does_not_depend_on_the_ranks(tmp_path: Path) -> None:
    def program(world: Any) -> torch.Tensor:
        graph = typed_models.typed_graph(world, tmp_path).reordered("degree" if world.size == 2 else "none")
        config = hpcgnn.ModelConfig("rgcn", layers=1, hidden=8, input_dropout=0.5)
        model = hpcgnn.build_model(config, graph, seed=1)
        model.begin_epoch(0)
        dropped = model.input_dropout(graph.features)
        zeros = [float((block == 0).float().mean()) for block in dropped.blocks if block.numel() > 50]
        assert all(0.2 < share < 0.8 for share in zeros)
        return hpcgnn.gather(replace(graph, features=dropped).x.to_dense(), graph)

    one, two = (on_threads(ranks, program)[0] for ranks in (1, 2))
    assert torch.equal(torch.as_tensor(one), torch.as_tensor(two))


def test_training_with_learned_rows_does_not_depend_on_the_ranks(tmp_path: Path) -> None:
    runs = [on_threads(ranks, lambda world: typed_models.train(world, tmp_path))[0] for ranks in (1, 2, 4)]
    one = runs[0][0]
    assert one[-1] < one[0]
    for losses, of_biases, of_rows in runs:
        assert np.allclose(losses, one, rtol=1e-5)
        assert np.abs(of_biases).max() > 1e-4
        assert np.allclose(
            of_rows, of_biases, rtol=1e-3, atol=1e-6
        )  # both are means over the training nodes of all ranks


def test_only_rows_of_the_last_checkpoint_are_kept(tmp_path: Path) -> None:
    def program(world: Any) -> None:
        graph = typed_models.typed_graph(world, tmp_path).with_target("")
        model = hpcgnn.build_model(hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed="all"), graph, seed=1)
        config = hpcgnn.TrainConfig(epochs=6, checkpoint_every=1)
        hpcgnn.Trainer(model, graph, config, run=RunFolder(tmp_path / "run")).fit()

    on_threads(2, program)
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").glob("last-*.h5")) == ["last-6.h5"]


@pytest.mark.parametrize(("embed", "target", "sentence"), [
    ("word", "", "no type of nodes 'word'; it has paper, author, venue, term, or all"),
    ("venue,,", "", "no type of nodes ''"),
    ("", "author", "has no labels of type 'author': paper has labels"),
])  # fmt: skip
def test_types_that_are_not_there_are_refused(tmp_path: Path, embed: str, target: str, sentence: str) -> None:
    config = hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed=embed)

    def program(world: Any) -> None:
        hpcgnn.build_model(config, typed_models.typed_graph(world, tmp_path).with_target(target))

    with pytest.raises(HpcgnnError, match=sentence):
        on_threads(2, program)


@pytest.mark.parametrize(("embed", "numbers"), [
    ("a,b", [0, 1]), ('"a,b"', [2]), ('c,"a,b",a', [0, 2, 3]), ('"""x"""', [4]), ("all", [0, 1, 2, 3, 4]),
    ("c,d", None), ('"a,b,c', None),
])  # fmt: skip
def test_a_type_whose_name_has_a_comma(embed: str, numbers: list[int] | None) -> None:
    types = tuple(NodeType(name, 1) for name in ("a", "b", "a,b", "c", '"x"'))
    meta = GraphMeta(num_nodes=5, num_edges=0, node_types=types)
    if numbers is not None:
        assert embedded_types(meta, embed, "g.h5") == numbers
        return
    with pytest.raises(HpcgnnError, match='it has a, b, "a,b", c, "x", or all'):
        embedded_types(meta, embed, "g.h5")


def test_the_command_trains_and_predicts_on_a_graph_with_types(tmp_path: Path) -> None:
    parts, run = tmp_path / "parts.h5", tmp_path / "run"
    small_graphs.write_parts(parts, typed_models.ARRAYS, np.zeros(60, np.int64), 1)
    given = ["--model", "rgcn", "--embed", "venue,term", "--target", "paper", "--epochs", "3", "--hidden", "8"]
    hpcgnn_command("train", parts, "--out", run, *given, "--quiet")
    assert 'embed = "venue,term"' in (run / "config.toml").read_text()
    predicts = "predict", parts, "--checkpoint", "last", "--out", tmp_path / "scores.h5", run
    said(*predicts)
    rows = run / "checkpoints/last-3.h5"
    assert "hpcgnn-node-rows" in said("show", rows)
    said("check", run)
    rows.unlink()
    assert "learned rows of nodes for its checkpoint: keep both in one folder" in refusal(*predicts)
