"""On graphs on which nothing can be learned, every task is at chance: held-out labels, targets and links reach no model.

Ends of links, types, features and labels are drawn independently of each other, so what a model knows of training is of no use
elsewhere. Several graphs give the mean of a metric and its standard error.
"""

from __future__ import annotations

import numpy as np
import pytest
import small_graphs
from small_graphs import Arrays
from trainings import trainer_of

from hpcgnn.data.schema import MASKS
from hpcgnn.world.thread_world import one_rank

NODES, LINKS, CLASSES, GRAPHS = 80, 480, 3, 6


def structureless(seed: int, kind: str) -> Arrays:
    """A random graph without loops and parallel edges, with both directions of each link. ``kind``: what is special about it."""
    rng = np.random.default_rng(seed)
    ends = np.stack(np.triu_indices(NODES, 1))[:, rng.choice(NODES * (NODES - 1) // 2, LINKS, replace=False)]
    y = rng.integers(0, CLASSES, NODES)
    if kind == "several labels":
        y = rng.integers(0, 2, (NODES, CLASSES)).astype(np.uint8)
    elif kind == "targets":
        y = rng.standard_normal(NODES).astype(np.float32)
    masks = dict(zip(MASKS, np.eye(3, dtype=bool)[rng.permutation(NODES) % 3].T, strict=True))
    x = rng.standard_normal((NODES, 8)).astype(np.float32)
    types = np.zeros(2 * LINKS, np.int32) if kind == "types" else None
    return Arrays(np.concatenate((ends, ends[::-1]), axis=1), x, y, masks, edge_type=types)


def outcomes(folder, kind: str, settings: dict, metrics: list[str]) -> np.ndarray:
    """(GRAPHS, metrics) of the test nodes or links, after a training of many epochs."""
    found = []
    for seed in range(GRAPHS):
        graph = small_graphs.on_ranks(one_rank(), structureless(seed, kind), folder / f"{seed}.h5")
        settings = {"hidden": 32, "layers": 1, "dropout": 0.0, "epochs": 60, "lr": 0.02, "eval_every": 60} | settings
        trainer = trainer_of(graph, settings)
        trainer.fit()
        assert trainer.records[-1]["loss"] < 0.97 * trainer.records[0]["loss"], "training data is learned"
        trainer.model.eval()
        values = []
        for trainer.task.metric in metrics:
            values.append(trainer.task.evaluate()[2])
        found.append(values)
    return np.array(found)


def between(found: np.ndarray, least: float, most: float) -> bool:
    """Return whether the mean may be that of numbers around ``least`` to ``most``, within three standard errors."""
    error = 3 * found.std(ddof=1) / np.sqrt(len(found))
    return least - error <= found.mean() <= most + error


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("links", {"model": "sage", "decoder": "mlp"}),
        ("types", {"model": "rgcn", "decoder": "distmult", "embed": "all"}),
    ],
)
def test_links(tmp_path, kind, settings):
    given = {"task": "link", "link_split": (0.1, 0.2), "negative_pool": 512, "negatives": 4}
    area, hits, rank = outcomes(tmp_path, kind, given | settings, ["roc-auc", "hits@100", "mrr"]).T
    assert between(area, 0.5, 0.5), area
    chance = 100 / (4 * 0.2 * 2 * LINKS + 1)
    assert between(hits, chance, chance), hits
    # All ranks of n candidates are as likely, but with types for the known end, which may be the first one of all.
    candidates = NODES - 2 * LINKS / NODES
    harmonic = (1 / np.arange(1, candidates + 1)).sum()
    assert between(rank, (harmonic - (kind == "types")) / candidates, harmonic / candidates), rank


def test_a_node_is_no_candidate_for_its_own_links(tmp_path):
    """Without types, no link joins a node with itself, which the inner product would often put first."""
    given = {"task": "link", "link_split": (0.1, 0.2), "model": "sage", "decoder": "dot"}
    (rank,) = outcomes(tmp_path, "links", given, ["mrr"]).T
    candidates = np.arange(1, NODES - 2 * LINKS / NODES)
    assert between(rank, (1 / candidates).mean(), (1 / candidates).mean()), rank


@pytest.mark.parametrize("settings", [{}, {"label_propagation": 0.5}])
def test_classes(tmp_path, settings):
    right, area = outcomes(tmp_path, "classes", {"model": "sage"} | settings, ["accuracy", "roc-auc"]).T
    assert between(right, 1 / CLASSES, 1 / CLASSES), right
    assert between(area, 0.5, 0.5), area


def test_several_labels(tmp_path):
    (area,) = outcomes(tmp_path, "several labels", {"model": "gcn", "embed": "all"}, ["roc-auc"]).T
    assert between(area, 0.5, 0.5), area


def test_targets(tmp_path):
    (share,) = outcomes(tmp_path, "targets", {"model": "gat"}, ["r2"]).T
    assert between(share, -np.inf, 0), share
