"""Sentences about trainings that learn nothing, and about settings without an effect: where it is certain before they start,
else at their end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.train.config import TrainConfig

if TYPE_CHECKING:
    from hpcgnn.train.tasks import Task

# float32 ends at 3.4e38, and norms and gradients have squares of rows.
_LARGEST_FEATURE = 1e18
# A run of this many epochs whose loss has fallen by less than this share has learned next to nothing.
_ENOUGH_EPOCHS, _LEAST_DECREASE = 10, 0.02

_LOG = logging.getLogger("hpcgnn")


def warn_at_start(task: Task, graph: LocalGraph, config: TrainConfig) -> None:
    """Log, on rank 0, a line for features that are too large and for each setting that cannot have an effect. Collective."""
    world, schedule = graph.world, config.schedule
    largest, for_validation = world.allreduce(np.array([_largest(graph), task.validation_size()]), "max").tolist()
    if world.rank:
        return
    if largest > _LARGEST_FEATURE:
        _LOG.warning(
            "%s has features of up to %.0e, whose squares float32 cannot hold: the model may learn nothing from them, so scale "
            "them down (`hpcgnn convert --row-normalise`)",
            graph.path,
            largest,
        )
    for name, reason in _without_effect(config, graph if not for_validation else None):
        _LOG.warning("%s has no effect, because %s", name, reason)
    if schedule.warmup > config.epochs:
        _LOG.warning(
            "the learning rate does not reach --lr, because --warmup %d is longer than the run of %d epochs",
            schedule.warmup,
            config.epochs,
        )


def _without_effect(config: TrainConfig, not_validated: LocalGraph | None) -> Iterator[tuple[str, str]]:
    """Settings that cannot have an effect, and the reasons. not_validated: the graph, if it has nothing for validation."""
    schedule, run = config.schedule, f"the run has {config.epochs} epochs"
    reason = f"{not_validated.path} has nothing for validation" if not_validated else ""
    if config.patience and (reason or config.eval_every >= config.epochs):
        yield "--patience", reason or f"{run} and --eval-every {config.eval_every} evaluates the last one only"
    if schedule.schedule == "plateau" and reason:
        yield "--schedule plateau", reason
    elif schedule.schedule in ("step", "plateau") and schedule.decay_every >= config.epochs:
        yield f"--schedule {schedule.schedule}", f"{run} and --decay-every is {schedule.decay_every}"


def _largest(graph: LocalGraph) -> float:
    """The largest magnitude of a feature of this rank."""
    features = graph.features
    values = features if isinstance(features, torch.Tensor) or features is None else features.weight
    return 0.0 if values is None or not values.numel() else max(abs(end.item()) for end in torch.aminmax(values))


def judge(summary: dict[str, Any], rank: int) -> None:
    """Log, on rank 0, a line if the run has learned next to nothing. ``summary``: the content of ``summary.json``.

    Raises:
        HpcgnnError: on every rank, if no epoch had a loss.
    """
    epochs, without, decrease = summary["epochs"], summary["epochs_without_loss"], summary["loss_decrease"]
    reason = "every training label was a model input: lower --label-propagation"
    if without and without == epochs:
        raise HpcgnnError(f"no epoch had a loss, and nothing was learned, because {reason}", agreed=True)
    if rank:
        return
    if without:
        _LOG.warning("%d of %d epochs had no loss, and changed no weight, because %s", without, epochs, reason)
    if decrease is not None and epochs >= _ENOUGH_EPOCHS and decrease < _LEAST_DECREASE:
        least = f"has fallen by {100 * decrease:.1f} %" if decrease > 0 else "was never below that of the first one"
        _LOG.warning(
            "the loss has hardly fallen: in %d epochs it %s (look at the features, --lr and the labels)", epochs, least
        )
