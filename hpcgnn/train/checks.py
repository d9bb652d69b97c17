"""Checks of a training: its memory and its settings before it starts, and at its end whether it has learned anything."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import Device
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr
from hpcgnn.nn.config import IGNORE, KEEP, MODELS, RECOMPUTE, WHOLE, AttentionSettings, LayerSettings, ModelConfig
from hpcgnn.train.config import TrainConfig
from hpcgnn.world import raise_on_all_ranks

_FLOAT_BYTES, _INDEX_BYTES, _OFFSET_BYTES = 4, 4, 8
_DIRECTIONS = 2  # a matrix and its transpose
_KEPT_BY_BATCH_NORM = 1
_GIB = 1 << 30
# float32 ends at 3.4e38, and norms and gradients have squares of rows.
_LARGEST_FEATURE = 1e18
# A run of this many epochs whose loss has fallen by less than this share has learned next to nothing.
_ENOUGH_EPOCHS, _LEAST_DECREASE = 10, 0.02

_LOG = logging.getLogger("hpcgnn")


def needed_bytes(graph: LocalGraph, config: ModelConfig, activations: str = KEEP) -> int:
    """A lower bound of the device memory of training: features, matrices, and the rows that each layer keeps for its gradients,
    with ``recompute`` one row of a node at most. The trial of hpcgnn.train.account counts only memory of this machine."""
    nodes, out = graph.num_nodes, config.hidden if config.decoder != "none" else max(graph.meta.num_classes, 1)
    model, hidden_layers = MODELS[config.model], 0
    if LayerSettings in config.sections():
        hidden_layers = max(config.section(LayerSettings).layers - (0 if model.ends_hidden else 1), 0)
    rows = model.kept_rows if config.edge_types == IGNORE else 0  # those of a model by types of edges are unknown
    if activations != KEEP:
        rows = min(rows, int(activations == RECOMPUTE))
    elif rows and config.norm_in_use == "batch":
        rows += _KEPT_BY_BATCH_NORM
    floats = nodes * (hidden_layers * rows * config.hidden + out)
    in_last_layer = 0  # what the last layer keeps
    in_backward = nodes * config.hidden if rows else 0  # gradients in a hidden layer, after that
    if _attends(config) and config.halo == WHOLE and activations == KEEP:  # a weight of every edge is kept
        edges = graph.indices.size
        floats += edges * hidden_layers * config.heads
        in_last_layer = edges * config.output_heads
        in_backward = max(in_backward, edges * 2 * config.heads)
    floats += max(in_last_layer, in_backward if hidden_layers else 0)
    return _held_bytes(graph, config) + floats * _FLOAT_BYTES


def _attends(config: ModelConfig) -> bool:
    """Return whether each rank holds every edge that ends at its nodes."""
    return AttentionSettings in config.sections() and config.attention != "partial" and config.layers > 0


def _held_bytes(graph: LocalGraph, config: ModelConfig) -> int:
    """Bytes of features, labels and the matrices of edges, except edges that other ranks may aggregate before they send."""
    nodes, features, edges = graph.num_nodes, graph.features, graph.indices.size
    if isinstance(features, Csr):
        held = features.num_entries * (_INDEX_BYTES + _FLOAT_BYTES) + nodes * _OFFSET_BYTES
    elif isinstance(features, FeaturesByType):
        held = sum(block.numel() for block in features.blocks) * _FLOAT_BYTES
    elif isinstance(features, FeaturesOnDisk):
        held = 0
    else:
        held = nodes * graph.meta.num_features * _FLOAT_BYTES
    held += 0 if graph.y is None else graph.y.nbytes
    if not _attends(config):
        edges = int(np.count_nonzero((graph.indices >= graph.first) & (graph.indices < graph.first + nodes)))
    return held + _DIRECTIONS * (edges * _INDEX_BYTES + nodes * _OFFSET_BYTES)


def check_fits(
    graph: LocalGraph, config: ModelConfig, device: Device, ranks_per_gpu: int = 1, activations: str = KEEP
) -> None:
    """Raise HpcgnnError on every rank if a part does not fit into the free memory of its device. Collective."""
    free, world = device.free_bytes(), graph.world
    with raise_on_all_ranks(world, f"put {graph.path} into the memory of a device"):
        if free is None:
            return
        needed, share = needed_bytes(graph, config, activations), free // ranks_per_gpu
        if needed > share:
            ranks = math.ceil(world.size * needed / max(share, 1))
            raise HpcgnnError(
                f"part {world.rank} of {graph.path} needs {needed / _GIB:.1f} GiB at least, but rank {world.rank} has only "
                f"{share / _GIB:.1f} GiB of {device.torch_device} ({device.name}) free: use {ranks} ranks or more, "
                "less --hidden, or --device cpu"
            )


def warn_at_start(validation_size: int, graph: LocalGraph, config: TrainConfig) -> None:
    """Log, on rank 0, a line for features that are too large and for each setting that cannot have an effect. Collective."""
    world, warmup = graph.world, config.schedule.warmup
    largest, for_validation = world.allreduce(np.array([_largest(graph), validation_size]), "max").tolist()
    if world.rank:
        return
    if largest > _LARGEST_FEATURE:
        sentence = (
            "%s has features of up to %.0e, whose squares float32 cannot hold: the model may learn nothing from them, so scale "
            "them down (`hpcgnn convert --row-normalise`)"
        )
        _LOG.warning(sentence, graph.path, largest)
    for name, reason in _without_effect(config, graph if not for_validation else None):
        _LOG.warning("%s has no effect, because %s", name, reason)
    if warmup > config.epochs:
        sentence = "the learning rate does not reach --lr, because --warmup %d is longer than the run of %d epochs"
        _LOG.warning(sentence, warmup, config.epochs)


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
    whole = features.weight if isinstance(features, Csr) else features
    values: Iterable[torch.Tensor] = () if whole is None else (whole,) if isinstance(whole, torch.Tensor) else ()
    if isinstance(whole, FeaturesByType):
        values = whole.blocks
    elif isinstance(whole, FeaturesOnDisk):
        values = (block for _, block in whole.blocks())
    ends = [end for each in values if each.numel() for end in torch.aminmax(each)]
    return max((abs(end.item()) for end in ends), default=0.0)


def judge(summary: dict[str, Any], rank: int) -> None:
    """Log, on rank 0, a line if the run, of which this is the ``summary.json``, has learned next to nothing. Raises HpcgnnError
    on every rank if no epoch had a loss."""
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
        advice = "(look at the features, --lr and the labels)"
        _LOG.warning("the loss has hardly fallen: in %d epochs it %s %s", epochs, least, advice)
