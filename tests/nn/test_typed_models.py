"""Models on graphs whose nodes have types: PyG's scores and gradients on any number of ranks, learned rows of nodes included."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from ranks import typed_models
from virtual_clusters import hpcgnn as hpcgnn_command

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.train import checkpoint, predict
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


def trained(tmp_path: Path, ranks: int, run: str, epochs: int, *, resume: bool = False) -> list[Any]:
    """The scores of all nodes by original ids after so many epochs, and those of the checkpoint best.pt."""

    def program(world: Any) -> Any:
        graph = typed_models.typed_graph(world, tmp_path).with_target("paper")
        config = hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed="venue,term", dropout=0.0)
        model = hpcgnn.build_model(config, graph, seed=1)
        trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs), run=RunFolder(tmp_path / run))
        if resume:
            trainer.resume()
        trainer.fit()
        model.eval()
        return hpcgnn.gather(model(graph.features).detach(), graph)

    return on_threads(ranks, program)


def of_checkpoint(tmp_path: Path, ranks: int, path: Path) -> Any:
    def program(world: Any) -> Any:
        graph = typed_models.typed_graph(world, tmp_path)
        content = checkpoint.read(world, path, None)
        return hpcgnn.gather(predict.predict(graph, content), graph)

    return on_threads(ranks, program)[0]


def test_a_resumed_run_continues_with_the_learned_rows_bit_for_bit(tmp_path: Path) -> None:
    whole = trained(tmp_path, 3, "whole", 8)[0]
    trained(tmp_path, 3, "half", 4)
    assert np.array_equal(trained(tmp_path, 3, "half", 8, resume=True)[0], whole)


def test_predictions_have_the_learned_rows_on_any_number_of_ranks(tmp_path: Path) -> None:
    whole = trained(tmp_path, 3, "run", 5)[0]
    for ranks in (1, 2, 4):
        found = of_checkpoint(tmp_path, ranks, tmp_path / "run/checkpoints/last.pt")
        assert np.allclose(found, whole, atol=1e-5)
    assert not np.allclose(of_checkpoint(tmp_path, 2, tmp_path / "run/checkpoints/best.pt"), 0)
    rows = next((tmp_path / "run/checkpoints").glob("last-5.h5"))
    rows.unlink()
    with pytest.raises(HpcgnnError, match="learned rows of nodes for its checkpoint: keep both in one folder"):
        of_checkpoint(tmp_path, 2, tmp_path / "run/checkpoints/last.pt")


def test_only_rows_of_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    def program(world: Any) -> None:
        graph = typed_models.typed_graph(world, tmp_path).with_target("")
        model = hpcgnn.build_model(hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed="all"), graph, seed=1)
        config = hpcgnn.TrainConfig(epochs=6, checkpoint_every=1)
        hpcgnn.Trainer(model, graph, config, run=RunFolder(tmp_path / "run")).fit()

    on_threads(2, program)
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").glob("last-*.h5")) == ["last-5.h5", "last-6.h5"]


@pytest.mark.parametrize(
    ("embed", "sentence"),
    [
        ("word", "no type of nodes 'word'; it has paper, author, venue, term, or all"),
        ("venue,,", "no type of nodes ''"),
    ],
)
def test_unknown_types_are_told(tmp_path: Path, embed: str, sentence: str) -> None:
    config = hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed=embed)
    with pytest.raises(HpcgnnError, match=sentence):
        on_threads(2, lambda world: hpcgnn.build_model(config, typed_models.typed_graph(world, tmp_path)))


def test_only_a_type_with_labels_can_be_the_target(tmp_path: Path) -> None:
    with pytest.raises(HpcgnnError, match="has no labels of type 'author': paper has labels"):
        on_threads(2, lambda world: typed_models.typed_graph(world, tmp_path).with_target("author"))


def test_the_command_trains_and_predicts_on_a_graph_with_types(tmp_path: Path) -> None:
    small_graphs.write_parts(tmp_path / "parts.h5", typed_models.ARRAYS, np.zeros(60, np.int64), 1)
    given = ["--model", "rgcn", "--embed", "venue,term", "--target", "paper", "--epochs", "3", "--hidden", "8"]
    found = hpcgnn_command("train", tmp_path / "parts.h5", "--out", tmp_path / "run", *given, "--json", "--quiet")
    assert json.loads(found.stdout.splitlines()[-1])["epochs"] == 3
    assert 'embed = "venue,term"' in (tmp_path / "run/config.toml").read_text()
    hpcgnn_command(
        "predict", tmp_path / "parts.h5", "--checkpoint", "last", "--out", tmp_path / "scores.h5", tmp_path / "run"
    )
    rows = tmp_path / "run/checkpoints/last-3.h5"
    assert "hpcgnn-node-rows" in hpcgnn_command("show", rows).stdout
    hpcgnn_command("check", tmp_path / "run")
    rows.write_bytes(rows.read_bytes()[:-40])
    hpcgnn_command("check", tmp_path / "run", expect=1)
