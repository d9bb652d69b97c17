"""Loss and metrics over the nodes of all ranks.

Shapes: scores (n, C) of this rank's nodes; y (n,) int64 or (n, C) uint8; mask (n,) bool. A labelled node has y >= 0, or any
label. For regression, scores are (n, K) predictions and y is (n, K) float64, with NaN for targets that are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.kernels import buffers
from hpcgnn.kernels.autograd import Gradients, recorded
from hpcgnn.kernels.sizes import block_size, scaled
from hpcgnn.train.config import BALANCED, NO_WEIGHTS
from hpcgnn.world import World, raise_on_all_ranks

_ROWS_AT_ONCE = 1 << 14  # of scores, for the loss


def loss_sum(
    scores: torch.Tensor,
    y: torch.Tensor,
    nodes: torch.Tensor,
    weights: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy, summed over (m,) int64 ``nodes``; for multi-label graphs binary cross-entropy, averaged over classes. It is
    differentiable for m = 0, too, so the rank takes part in every backward exchange. weights: (C,) as of :func:`class_weights`.
    smoothing: share of the targets that is spread over all classes, or over both answers for each of several labels."""

    def of_rows(learned: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        targets = y.index_select(0, rows)
        if y.dim() == 1:
            return F.cross_entropy(learned, targets, weights, reduction="sum", label_smoothing=smoothing)
        wanted = targets.to(scores.dtype) * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(learned, wanted, pos_weight=weights, reduction="sum") / y.shape[1]

    if scores.nbytes < scaled(buffers.LEAST_BYTES):  # several matrices of this size may exist
        return of_rows(scores.index_select(0, nodes), nodes)
    return _sum_over_blocks(scores, nodes, of_rows)


def _sum_over_blocks(scores: torch.Tensor, nodes: torch.Tensor, of_rows: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The sum of ``of_rows(scores[rows], rows)`` over blocks of the rows ``nodes`` (m,) int64. Forward makes the gradient by
    blocks, too, and keeps nothing else: several (m, C) matrices would exist otherwise."""
    num_rows = scores.shape[0]

    def run(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        scores, total = scores.detach(), scores.new_zeros(())
        made = buffers.empty(nodes.numel(), scores.shape[1], scores.dtype, scores.device)
        for rows, of_scores in _blocks(nodes, made):
            with torch.enable_grad():
                learned = scores.index_select(0, rows).requires_grad_()
                loss = of_rows(learned, rows)
                of_scores.copy_(torch.autograd.grad(loss, learned)[0])
            total += loss.detach()
        ctx.save_for_backward(nodes, made)
        return total

    def back(ctx: Any, dy: torch.Tensor) -> Gradients:
        nodes, made = ctx.saved_tensors
        out = buffers.empty(num_rows, made.shape[1], made.dtype, made.device).zero_()
        for rows, of_scores in _blocks(nodes, made):
            out.index_add_(0, rows, of_scores * dy)
        return (out,)

    return recorded(run, back, scores)


def _blocks(nodes: torch.Tensor, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both in blocks of rows."""
    size = block_size(_ROWS_AT_ONCE, nodes.shape[0])
    return zip(nodes.split(size), values.split(size), strict=True)


REAL_LOSSES: dict[str, Any] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


def class_weights(world: World, choice: str, y: torch.Tensor, trained: torch.Tensor, classes: int) -> np.ndarray | None:
    """(C,) float64 weights of classes for ``--class-weight``, None for ``none``. y: as above. trained: (n,) bool training nodes.
    Collective; HpcgnnError on every rank for a file that cannot be used."""
    if choice == NO_WEIGHTS:
        return None
    labels = index_array(y[trained])
    mine = np.bincount(labels, minlength=classes) if y.dim() == 1 else labels.sum(axis=0, dtype=np.int64)
    *counts, nodes = world.allreduce(np.append(mine, len(labels)), what="the sizes of classes").tolist()
    sizes, given = np.array(counts, np.float64), None
    if choice != BALANCED:
        with raise_on_all_ranks(world, f"read {choice}"):
            given = _weights_in(choice, classes) if world.rank == 0 else None
        given = world.broadcast(given, what="the weights of classes")
    if y.dim() == 2:
        return np.where(sizes > 0, (nodes - sizes) / np.maximum(sizes, 1), 1.0) if given is None else given
    weights = np.where(sizes > 0, 1 / np.maximum(sizes, 1), 0.0) if given is None else given
    total = float(weights @ sizes)
    if not total > 0:
        raise HpcgnnError(f"{choice} gives weight 0 to all classes that training nodes have", agreed=True)
    return weights * (nodes / total)


def _weights_in(path: str, classes: int) -> np.ndarray:
    """The (C,) weights in a text file. Raises HpcgnnError for other content."""
    try:
        weights = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise HpcgnnError(f"cannot read weights of classes from {path}: {error}") from error
    if weights.shape != (classes,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise HpcgnnError(
            f"{path} should have a number of at least 0 for each of the {classes} classes, a line each, from class 0 on"
        )
    return weights


def evaluate(
    world: World, metric: str, scores: torch.Tensor, y: torch.Tensor, masks: list[torch.Tensor]
) -> list[float | None]:
    """The metric over the nodes of each mask on all ranks; None for an empty mask and, for ROC-AUC, a single class. Collective.

    Every rank gets the numbers of rank 0 bit for bit, because early stopping and schedules depend on them.
    """
    measure = {"accuracy": _accuracy, "micro-f1": _micro_f1, "roc-auc": _roc_auc}[metric]
    return world.broadcast(measure(world, scores, y, masks), what="the metrics")


def _accuracy(world: World, scores: torch.Tensor, y: torch.Tensor, masks: list[torch.Tensor]) -> list[float | None]:
    right = _predicted(scores, y) == y
    right = right.all(dim=1) if y.dim() == 2 else right
    counts = _summed(world, [[(right & mask).sum(), mask.sum()] for mask in masks])
    return [correct / total if total else None for correct, total in counts]


def _micro_f1(world: World, scores: torch.Tensor, y: torch.Tensor, masks: list[torch.Tensor]) -> list[float | None]:
    if y.dim() == 1:
        return _accuracy(world, scores, y, masks)  # with one label for each node both are the same number
    predicted, actual = _predicted(scores, y).bool(), y.bool()
    hits, either = (predicted & actual).sum(1), predicted.sum(1) + actual.sum(1)
    counts = _summed(world, [[(hits * mask).sum(), (either * mask).sum()] for mask in masks])
    return [2 * hit / total if total else None for hit, total in counts]


def _predicted(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores > 0).to(y.dtype) if y.dim() == 2 else scores.argmax(dim=1)


def _summed(world: World, counts: list[list[torch.Tensor]]) -> list[list[int]]:
    return world.allreduce(torch.stack([torch.stack(pair) for pair in counts]), what="metric counts").tolist()


def _roc_auc(world: World, scores: torch.Tensor, y: torch.Tensor, masks: list[torch.Tensor]) -> list[float | None]:
    """Area under the ROC curve: of class 1 for two classes, else the mean over classes (one against the others)."""
    if y.dim() == 2:
        columns: list[tuple[torch.Tensor, torch.Tensor]] = [(scores[:, c], y[:, c] == 1) for c in range(y.shape[1])]
    elif scores.shape[1] == 2:
        columns = [(scores[:, 1] - scores[:, 0], y == 1)]
    else:
        likelihoods = scores.log_softmax(1)
        columns = [(likelihoods[:, c], y == c) for c in range(scores.shape[1])]
    results: list[float | None] = []
    for mask in masks:
        areas = [
            distributed_auc(world, host_values(column[mask]), index_array(actual[mask])) for column, actual in columns
        ]
        known = [area for area in areas if area is not None]
        results.append(float(np.mean(known)) if known else None)
    return results


Spread = tuple[np.ndarray, np.ndarray]
_ROUNDING = 1e-12  # the share of a mean below which distances from it are rounding errors: targets have 24 bits


def target_spread(world: World, y: torch.Tensor, masks: list[torch.Tensor]) -> Spread:
    """``(counts, squares)``, each (masks, K) float64: the number of known targets of each mask on all ranks, and the sum of their
    squared distances from their mean. Collective."""
    counts = _sums_of_known(world, [torch.ones_like(y)] * len(masks), y, masks)
    means = _sums_of_known(world, [y] * len(masks), y, masks) / np.maximum(counts, 1)
    around = [(y - torch.from_numpy(mean).to(y)).square() for mean in means]
    squares = _sums_of_known(world, around, y, masks)
    return counts, np.where(squares > counts * (_ROUNDING * means) ** 2, squares, 0.0)


def evaluate_targets(
    world: World, metric: str, scores: torch.Tensor, y: torch.Tensor, masks: list[torch.Tensor], spread: Spread
) -> list[float | None]:
    """As :func:`evaluate`, for regression: the mean over the K targets, as in scikit-learn. Targets of which a mask has none, and
    for ``r2`` those that are constant there, do not count. spread: of :func:`target_spread`. Collective."""
    errors = scores.double() - y
    distances = errors.abs() if metric == "mae" else errors.square()
    sums, over = _sums_of_known(world, [distances] * len(masks), y, masks), spread[metric == "r2"]
    found: list[float | None] = []
    for total, divisor in zip(sums, over, strict=True):
        share = total[divisor > 0] / divisor[divisor > 0]
        share = {"r2": 1 - share, "rmse": np.sqrt(share), "mae": share}[metric]
        found.append(float(share.mean()) if share.size else None)
    found = world.broadcast(found, what="the metrics")
    if not all(value is None or np.isfinite(value) for value in found):
        raise HpcgnnError("predictions became NaN or infinite: lower --lr or scale the features down", agreed=True)
    return found


def _sums_of_known(world: World, values: list[torch.Tensor], y: torch.Tensor, masks: list[torch.Tensor]) -> np.ndarray:
    """(masks, K) float64: the sums of values (n, K), one for each mask, over its known targets on all ranks. Collective."""
    known = ~y.isnan()
    mine = [torch.where(known & mask[:, None], each, 0.0).sum(dim=0) for each, mask in zip(values, masks, strict=True)]
    return host_values(world.allreduce(torch.stack(mine), what="sums for metrics"))


def link_metric(world: World, metric: str, joined: np.ndarray, apart: np.ndarray) -> float | None:
    """A metric from all ranks' scores of links and of negative pairs; None without one of both. ``hits@K`` is the share of links
    with a score above the K-th highest score of negative pairs, as OGB defines it. Collective."""
    if metric == "roc-auc":
        positive = np.repeat([True, False], [joined.size, apart.size])
        return distributed_auc(world, np.concatenate((joined, apart)), positive)
    threshold = _largest(world, apart, int(metric.removeprefix("hits@")))
    hits, total, others = world.allreduce(np.array([(joined > threshold).sum(), joined.size, apart.size])).tolist()
    return hits / total if total and others else None


def _largest(world: World, values: np.ndarray, rank: int) -> float:
    """The ``rank``-th largest of all ranks' values; -inf if there are fewer. O(P rank) memory. Collective."""
    mine = np.full(rank, -np.inf)
    first = np.sort(values)[::-1][:rank]
    mine[: first.size] = first
    return float(np.sort(world.allgather(mine).ravel())[-rank])


_SPLITTERS_PER_RANK = 32


def distributed_auc(world: World, scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The exact area under the ROC curve of all ranks' (n,) scores and (n,) bool labels; ties count half. None if there are no
    positives or no negatives. A sample sort distributes ranges of the distinct scores over ranks. Collective."""
    rows = _counted(np.stack((scores, positive, ~positive), axis=1, dtype=np.float64))
    owners = np.searchsorted(_splitters(world, rows[:, 0]), rows[:, 0], side="right")
    received, _ = world.alltoallv(rows, np.bincount(owners, minlength=world.size))  # rows ascend, so owners do
    _, positives, negatives = _counted(received).T
    totals = np.array([positives.sum(), negatives.sum()])
    below = world.exscan(totals)[1] + np.cumsum(negatives) - negatives
    won = world.allreduce(np.array([(positives * (below + negatives / 2)).sum()]), what="metric counts")[0]
    all_positive, all_negative = world.allreduce(totals, what="metric counts")
    return float(won / (all_positive * all_negative)) if all_positive and all_negative else None


def _counted(rows: np.ndarray) -> np.ndarray:
    """Distinct scores, ascending, with their counts: (n, 3) float64 rows (score, positives, negatives) summed by score."""
    values, group = np.unique(rows[:, 0], return_inverse=True)
    summed = np.zeros((values.size, 3))
    np.add.at(summed, group, rows)
    summed[:, 0] = values
    return summed


def _splitters(world: World, scores: np.ndarray) -> np.ndarray:
    """(P - 1,) ascending scores that divide all ranks' scores into ranges of about equal size. O(P) memory."""
    levels = np.linspace(0, 1, _SPLITTERS_PER_RANK)
    sample = np.quantile(scores, levels) if scores.size else np.full_like(levels, np.nan)
    samples = np.sort(world.allgather(sample).ravel())
    samples = samples[~np.isnan(samples)]
    if samples.size == 0:
        return np.zeros(world.size - 1)
    return samples[np.arange(1, world.size) * samples.size // world.size]
