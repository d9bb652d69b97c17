"""A check that a rank's part fits into the memory of its device, before anything is moved there."""

from __future__ import annotations

import math

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import Device
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.config import MODELS, AttentionSettings, LayerSettings, ModelConfig
from hpcgnn.world import raise_on_all_ranks

_FLOAT_BYTES, _INDEX_BYTES, _OFFSET_BYTES = 4, 4, 8
_DIRECTIONS = 2  # a matrix and its transpose
_KEPT_BY_BATCH_NORM = 2
_GIB = 1 << 30


def needed_bytes(graph: LocalGraph, config: ModelConfig) -> int:
    """A lower bound of the device memory of training: features, matrices, and the rows that each layer keeps for its gradients.

    Halo rows, messages, most temporary memory and the memory of libraries come on top.
    """
    nodes, out = graph.num_nodes, config.hidden if config.decoder != "none" else max(graph.meta.num_classes, 1)
    hidden_layers, rows = _hidden_layers(config), MODELS[config.model].kept_rows
    if rows and config.section(LayerSettings).norm == "batch":
        rows += _KEPT_BY_BATCH_NORM
    floats = nodes * (hidden_layers * rows * config.hidden + out)
    in_last_layer = 0  # what the last layer keeps
    in_backward = nodes * config.hidden if rows else 0  # gradients in a hidden layer, after that
    if _attends(config):
        edges, joint, last_joint = graph.indices.size, 0, 0
        if config.model == "gatv2":  # rows of both ends
            joint, last_joint = config.hidden, out * config.output_heads
        floats += edges * hidden_layers * (config.heads + joint)
        in_last_layer = edges * (config.output_heads + last_joint)
        in_backward = max(in_backward, edges * (joint or 2 * config.heads))
    floats += max(in_last_layer, in_backward if hidden_layers else 0)
    return _held_bytes(graph, config) + floats * _FLOAT_BYTES


def _hidden_layers(config: ModelConfig) -> int:
    if LayerSettings not in config.sections():
        return 0
    layers = config.section(LayerSettings).layers
    return layers if MODELS[config.model].ends_hidden else layers - 1


def _attends(config: ModelConfig) -> bool:
    """Return whether each rank has a weight of every edge that ends at its nodes."""
    return AttentionSettings in config.sections() and config.attention != "partial"


def _held_bytes(graph: LocalGraph, config: ModelConfig) -> int:
    """Bytes of features, labels and the matrices of edges, except edges that other ranks may aggregate before they send."""
    nodes, features, edges = graph.num_nodes, graph.features, graph.indices.size
    if isinstance(features, Csr):
        held = features.num_entries * (_INDEX_BYTES + _FLOAT_BYTES) + nodes * _OFFSET_BYTES
    else:
        held = nodes * graph.meta.num_features * _FLOAT_BYTES
    held += 0 if graph.y is None else graph.y.nbytes
    if not _attends(config):
        edges = int(np.count_nonzero((graph.indices >= graph.first) & (graph.indices < graph.first + nodes)))
    return held + _DIRECTIONS * (edges * _INDEX_BYTES + nodes * _OFFSET_BYTES)


def check_fits(graph: LocalGraph, config: ModelConfig, device: Device, ranks_per_gpu: int = 1) -> None:
    """Raise HpcgnnError on every rank if a part does not fit into the free memory of its device. Collective."""
    free, world = device.free_bytes(), graph.world
    with raise_on_all_ranks(world, f"put {graph.path} into the memory of a device"):
        if free is None:
            return
        needed, share = needed_bytes(graph, config), free // ranks_per_gpu
        if needed > share:
            ranks = math.ceil(world.size * needed / max(share, 1))
            raise HpcgnnError(
                f"part {world.rank} of {graph.path} needs {needed / _GIB:.1f} GiB at least, but rank {world.rank} has only "
                f"{share / _GIB:.1f} GiB of {device.torch_device} ({device.name}) free: use {ranks} ranks or more, "
                "less --hidden, or --device cpu"
            )
