"""Programs for ranks: link prediction, compared with PyG and scikit-learn on the whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyg_models
import small_graphs
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.train.links import Links, LinkSplit
from hpcgnn.train.negatives import Negatives
from hpcgnn.train.tasks import LinkTask
from hpcgnn.world import World

CONFIG = hpcgnn.ModelConfig(model="gcn", layers=2, hidden=8, dropout=0.0, norm="layer", decoder="dot")
LINKS = hpcgnn.LinkConfig(link_split=(0.15, 0.2), negatives=3, negative_pool=25)
EPOCH = 4


def gathered(world: World, rows: np.ndarray) -> np.ndarray:
    """The rows of all ranks, on each rank."""
    (counts,) = world.allgather(np.array([len(rows)])).T
    found = np.zeros((counts.sum(), *rows.shape[1:]), rows.dtype)
    found[counts[: world.rank].sum() :][: len(rows)] = rows
    return world.allreduce(found)


def pairs_of(graph: LocalGraph, links: Links) -> np.ndarray:
    """(links, 2) original ids of sources and targets on all ranks, sorted."""
    ends = np.stack((links.ids & (2**32 - 1), links.ids >> 32), axis=1)  # the inverse of edge_ids
    return np.array(sorted(map(tuple, gathered(graph.world, ends))))


def negatives_of(task: LinkTask, drawn: Negatives) -> np.ndarray:
    """(negatives, 2) original ids of sources and targets on all ranks, sorted."""
    graph = task.split.graph
    pool = np.zeros(drawn.of_targets.num_cols, np.int64)
    pool[drawn.slots] = graph.original_ids[drawn.owned]
    pool = graph.world.allreduce(pool)
    target = graph.original_ids[drawn.of_targets.entry_rows()].numpy()
    ends = np.stack((pool[drawn.of_targets.indices.numpy()], target), axis=1)
    return np.array(sorted(map(tuple, gathered(graph.world, ends))))


def wanted(
    arrays: small_graphs.Arrays, state: dict, train: np.ndarray, learned: np.ndarray, apart: np.ndarray
) -> tuple:
    """The sum of losses, PyG's model after backward, and its embeddings. train: (2, e) edges that carry messages."""
    model = pyg_models.reference(CONFIG, arrays.x.shape[1], CONFIG.hidden, state)
    rows = model(torch.from_numpy(arrays.x).double(), torch.from_numpy(train), None)
    scores = [(rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1) for pairs in (learned, apart)]
    labels = [torch.full_like(each, float(number == 0)) for number, each in enumerate(scores)]
    loss = F.binary_cross_entropy_with_logits(torch.cat(scores), torch.cat(labels), reduction="sum")
    loss.backward()
    return loss, model, rows.detach()


def compare(split: LinkSplit, arrays: small_graphs.Arrays) -> dict:
    """Compare the loss, gradients, metrics and random draws."""
    world = split.graph.world
    model = hpcgnn.build_model(CONFIG, split.train, backend="reference", dtype=torch.float64, seed=1)
    task = LinkTask(model, split, "roc-auc")
    model.train()
    model.begin_epoch(EPOCH)
    loss, count = task.loss(EPOCH)
    loss.backward()
    sums = {name: torch.from_numpy(world.allreduce(p.grad.numpy())) for name, p in model.named_parameters()}
    drawn = negatives_of(task, task.sampler.draw(task.learned, model.keys.seed, EPOCH))
    sides = [pairs_of(graph, links) for graph, links in ((split.train, task.learned), *zip(
        (split.validation, split.test), (links for links, _ in task.held_out), strict=True))]  # fmt: skip
    loops = arrays.edge_index[:, arrays.edge_index[0] == arrays.edge_index[1]]
    messages = np.concatenate((sides[0].T, loops), axis=1)
    theirs, reference, rows = wanted(arrays, model.state_dict(), messages, sides[0], drawn)
    gradients = dict(reference.named_parameters())
    errors = [
        float((grad - gradients[name].grad).abs().max()) for name, grad in pyg_models.to_pyg(CONFIG, sums).items()
    ]
    model.eval()
    with torch.no_grad():
        metrics = {metric: evaluated(task, metric) for metric in ("roc-auc", "hits@10", "hits@50", "hits@100")}
    fixed = [negatives_of(task, each) for each in task._fixed]
    return {
        "loss_error": abs(float(world.allreduce(np.array([loss.item()]))[0]) / theirs.item() - 1),
        "gradient_error": max(errors) / max(float(p.grad.abs().max()) for p in gradients.values()),
        "count_error": int(world.allreduce(np.array([count]))[0]) - len(sides[0]) - len(drawn),
        "metrics": metrics,
        "wanted_metrics": {metric: [by_hand(rows, metric, *each) for each in zip(sides[1:], fixed, strict=True)]
                           for metric in metrics},
        "sides": [each.tolist() for each in sides],
        "negatives": [each.tolist() for each in (drawn, *fixed)],
    }  # fmt: skip


def evaluated(task: LinkTask, metric: str) -> list[float | None]:
    task.metric = metric
    training, *held_out = task.evaluate()
    assert training is None
    return held_out


def by_hand(rows: torch.Tensor, metric: str, links: np.ndarray, apart: np.ndarray) -> float:
    joined, other = ((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1).numpy() for pairs in (links, apart))
    if metric == "roc-auc":
        return roc_auc_score([1] * len(joined) + [0] * len(other), np.concatenate((joined, other)))
    rank = int(metric.partition("@")[2])
    return float((joined > (np.sort(other)[-rank] if len(other) >= rank else -np.inf)).mean())


def trained(graph: LocalGraph, **changes: object) -> list[float]:
    """The losses of some epochs, and the last metrics."""
    split = hpcgnn.split_links(graph, LINKS)
    config = replace(CONFIG, **{"decoder": "mlp", "dropout": 0.4} | changes)
    model = hpcgnn.build_model(config, split.train, backend="reference", dtype=torch.float64, seed=2)
    trainer = hpcgnn.Trainer(model, split, hpcgnn.TrainConfig(epochs=4))
    trainer.fit()
    return [record["loss"] for record in trainer.records] + [
        trainer.records[-1][f"{name}_metric"] for name in ("val", "test")
    ]


def report(world: World, folder: Path) -> dict:
    """The results, beside the expected ones."""
    arrays = small_graphs.random_multigraph()
    graph = small_graphs.on_ranks(world, arrays, folder / f"links-{world.size}.h5")
    split = hpcgnn.split_links(graph, LINKS)
    whole = hpcgnn.build_model(CONFIG, graph)
    try:
        LinkTask(whole, split, "auto")
        refused = False
    except hpcgnn.HpcgnnError as error:
        refused = "held-out links" in str(error)
    found = compare(split, arrays) | {
        "refused": refused,
        "trained": {
            "mlp": trained(graph),
            "rows": trained(graph, model="sage", layers=0, embed="all"),
            "gat": trained(graph, model="gat", hidden=16, heads=2, attention="partial"),
        },
        "reordered": trained(graph.reordered("rcm")),
    }
    return found | {"edges": arrays.edge_index.T.tolist()}
