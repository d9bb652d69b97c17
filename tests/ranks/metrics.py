"""A program for ranks: metrics of scores that are distributed over them, compared with scikit-learn on all scores."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from hpcgnn.train import objective
from hpcgnn.world import World


def mine(world: World, array: np.ndarray) -> torch.Tensor:
    """This rank's share; rank 1 has none."""
    share = np.arange(array.shape[0]) % world.size
    share[share == 1] = 0
    return torch.from_numpy(array[share == world.rank])


def compare(world: World) -> dict[str, list[float | None]]:
    """By name: our metric, our metric of no node, and scikit-learn's."""
    rng = np.random.default_rng(0)
    nodes = 500
    mask, none = rng.random(nodes) < 0.7, np.zeros(nodes, dtype=bool)
    scores = np.round(rng.standard_normal((nodes, 5)), 1)  # rounded, so that there are ties
    y, multi = rng.integers(0, 5, nodes), rng.integers(0, 2, (nodes, 5), dtype=np.uint8)
    binary = (y > 2).astype(np.int64)
    two = np.stack((-scores[:, 0], scores[:, 0]), axis=1)
    shifted = np.asarray(torch.from_numpy(scores).log_softmax(1))

    def ours(metric: str, s: np.ndarray, labels: np.ndarray, counts: np.ndarray = mask) -> list[float | None]:
        masks = [mine(world, counts), mine(world, none)]
        return objective.evaluate(world, metric, mine(world, s), mine(world, labels), masks)

    pair, one_each = np.arange(nodes) < 2, np.append([0, 1], binary[2:])  # so that most ranks have no scores
    predicted = scores > 0
    found = {
        "accuracy": (ours("accuracy", scores, y), accuracy_score(y[mask], scores.argmax(1)[mask])),
        "micro-f1": (ours("micro-f1", scores, multi), f1_score(multi[mask], predicted[mask], average="micro")),
        "micro-f1 of one label": (
            ours("micro-f1", scores, y),
            f1_score(y[mask], scores.argmax(1)[mask], average="micro"),
        ),
        "roc-auc": (ours("roc-auc", two, binary), roc_auc_score(binary[mask], scores[mask, 0])),
        "roc-auc multi-label": (ours("roc-auc", scores, multi), roc_auc_score(multi[mask], scores[mask])),
        "roc-auc multi-label without an example": (
            ours("roc-auc", scores, multi * (np.arange(5) != 2).astype(np.uint8)),
            roc_auc_score(multi[mask][:, [0, 1, 3, 4]], scores[mask][:, [0, 1, 3, 4]]),
        ),
        "roc-auc multi-class": (
            ours("roc-auc", scores, y),
            np.mean([roc_auc_score(y[mask] == c, shifted[mask, c]) for c in range(5)]),
        ),
        "roc-auc of equal scores": (ours("roc-auc", np.zeros((nodes, 2)), binary), 0.5),
        "roc-auc of two nodes": (ours("roc-auc", two, one_each, pair), float(scores[0, 0] < scores[1, 0])),
        "roc-auc one class": (ours("roc-auc", two, np.zeros(nodes, dtype=np.int64)), None),
    }
    everywhere = world.allgather(np.array([np.nan if v is None else v for v, _ in (x for x, _ in found.values())]))
    assert np.array_equal(everywhere, np.broadcast_to(everywhere[0], everywhere.shape), equal_nan=True)
    return {name: [*values, wanted] for name, (values, wanted) in found.items()}
