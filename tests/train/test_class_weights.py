"""Weights of classes and label smoothing: the loss of all ranks is torch's, with scikit-learn's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from sklearn.utils.class_weight import compute_class_weight

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train import objective
from hpcgnn.train.config import LossConfig
from hpcgnn.world.thread_world import on_threads

GRAPH = small_graphs.random_multigraph(seed=3)
TRAINED = GRAPH.masks["train_mask"]
ROWS = np.random.default_rng(0).standard_normal((GRAPH.num_nodes, GRAPH.num_classes))


def losses(folder: Path, graph: small_graphs.Arrays, ranks: int, config: LossConfig) -> list[tuple[float, int]]:
    """``(sum, number of nodes)`` of each rank, of which the last of three has no nodes; scores are :data:`ROWS`."""

    def program(world: Any) -> tuple[float, int]:
        mine = small_graphs.on_ranks(world, graph, folder / f"parts-{ranks}.h5")
        trained = mine.masks["train_mask"]
        weights = objective.class_weights(world, config.class_weight, mine.y, trained, mine.meta.num_classes)
        given = None if weights is None else torch.from_numpy(weights)
        scores = torch.from_numpy(ROWS[mine.original_ids.numpy(), : mine.meta.num_classes])
        nodes = trained.nonzero()[:, 0]
        return float(objective.loss_sum(scores, mine.y, nodes, given, config.label_smoothing)), nodes.numel()

    return on_threads(ranks, program)


def mean_of(found: list[tuple[float, int]]) -> float:
    return sum(loss for loss, _ in found) / sum(count for _, count in found)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("choice", ["none", "balanced", "FILE"])
def test_the_mean_is_torchs(tmp_path: Path, choice: str, ranks: int, smoothing: float) -> None:
    y = GRAPH.y[TRAINED]
    weights = {
        "none": np.ones(4),
        "balanced": compute_class_weight("balanced", classes=np.arange(4), y=y),
        "FILE": np.array([0.5, 0, 3, 2]),
    }[choice]
    if choice == "FILE":
        choice = str(tmp_path / "weights.txt")
        np.savetxt(choice, weights)
    entropy = torch.nn.CrossEntropyLoss(torch.from_numpy(weights), label_smoothing=smoothing)
    wanted = float(entropy(torch.from_numpy(ROWS[TRAINED]), torch.from_numpy(y)))
    config = LossConfig(class_weight=choice, label_smoothing=smoothing)
    assert mean_of(losses(tmp_path, GRAPH, ranks, config)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 3])
def test_nodes_with_several_labels(tmp_path: Path, ranks: int) -> None:
    labels = (np.random.default_rng(1).random((GRAPH.num_nodes, 3)) < [0.5, 0.1, 0]).astype(
        np.uint8
    )  # nobody has the last
    graph = replace(GRAPH, y=labels)
    mine = labels[TRAINED]
    have = mine.sum(axis=0)
    factors = [(len(mine) - have[0]) / have[0], (len(mine) - have[1]) / have[1], 1.0]
    entropy = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(factors, dtype=torch.float64))
    wanted = float(entropy(torch.from_numpy(ROWS[TRAINED, :3]), torch.from_numpy(mine * 0.9 + 0.05)))
    found = mean_of(losses(tmp_path, graph, ranks, LossConfig("balanced", 0.1)))
    assert found == pytest.approx(wanted, rel=1e-12)


def test_a_class_without_training_nodes_has_no_weight(tmp_path: Path) -> None:
    y = np.where(TRAINED & (GRAPH.y == 2), 1, GRAPH.y)

    def program(world: Any) -> list[float]:
        graph = small_graphs.on_ranks(world, replace(GRAPH, y=y), tmp_path / "parts.h5")
        return objective.class_weights(world, "balanced", graph.y, graph.masks["train_mask"], 4).tolist()

    one, other = on_threads(2, program)
    assert one == other
    assert one[2] == 0
    assert np.dot(one, np.bincount(y[TRAINED], minlength=4)) == pytest.approx(TRAINED.sum())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1\n2\n3\n", "should have a number of at least 0 for each of the 4 classes"),
        ("1\n2\n3\n-1\n", "should have a number of at least 0"),
        ("1\n2\n3\nnan\n", "should have a number of at least 0"),
        ("1\n2\nthree\n4\n", "cannot read weights of classes"),
        ("0\n0\n0\n0\n", "gives weight 0 to all classes"),
        (None, "cannot read weights of classes"),
    ],
)
def test_a_wrong_file_is_refused_on_all_ranks(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "weights.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(HpcgnnError, match=sentence) as error:
        losses(tmp_path, GRAPH, 2, LossConfig(str(path)))
    assert "\n" not in str(error.value)
