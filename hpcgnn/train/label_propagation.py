"""Masked label propagation: some training labels are inputs, and the loss is on the other training nodes.

After SuperGCN (§3.3.2) and UniMP (Shi et al. 2021). Labels travel with the features, so they reach other ranks through the
exchange of the first layer and nothing else is sent. At evaluation all training labels are inputs, and never another one.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, keyed
from hpcgnn.nn.layers import label_matrix
from hpcgnn.train.task_config import LabelPropagationConfig

# Takes the place of the layer in a dropout's key, so no dropout mask uses the same random numbers.
_LABELS = int.from_bytes(b"labels", "big")


def drawn_nodes(config: LabelPropagationConfig, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    """(n,) bool: the nodes whose label is an input in ``epoch`` if they are training nodes.

    The draw is a function of (seed, epoch, original id), so it is the same for any number of ranks, and nothing needs saving.
    """
    key = keyed.derive_key(seed, epoch if config.redraw == "epoch" else 0, _LABELS)
    draws = keyed.draws(keyed.row_hashes(key, index_array(ids)), np.zeros(1, dtype=np.uint32))
    return torch.from_numpy(draws < np.uint32(keyed.threshold(config.rate)))


class LabelInputs:
    """The labels of a rank's nodes that are inputs, and the nodes of the loss. The graph needs labels and a split.

    Labels are (n, C) ones, as :class:`hpcgnn.nn.GraphModel` takes them, or None if no labels are propagated.
    """

    def __init__(self, config: LabelPropagationConfig, graph: LocalGraph, seed: int) -> None:
        self._config, self._graph, self._seed = config, graph, seed
        self._trained = graph.masks["train_mask"].nonzero()[:, 0]
        self._drawn: tuple[int, tuple[Csr | None, torch.Tensor]] | None = None

    def training(self, epoch: int) -> tuple[Csr | None, torch.Tensor]:
        """The input labels of ``epoch``, and the (m,) int64 other training nodes, ascending, on which the loss is computed."""
        if self._config.rate == 0:
            return None, self._trained
        trained = self._graph.masks["train_mask"]
        drawing = epoch if self._config.redraw == "epoch" else 0
        if self._drawn is None or self._drawn[0] != drawing:
            drawn = drawn_nodes(self._config, self._seed, drawing, self._graph.original_ids).to(trained.device)
            self._drawn = drawing, (training_labels(self._graph, drawn), (trained & ~drawn).nonzero()[:, 0])
        return self._drawn[1]

    @cached_property
    def evaluation(self) -> Csr | None:
        """The labels of all training nodes."""
        return training_labels(self._graph) if self._config.rate else None


def training_labels(graph: LocalGraph, nodes: torch.Tensor | None = None) -> Csr:
    """(n, C) ones at the labels of training nodes; with (n,) bool ``nodes``, of those among them."""
    assert graph.y is not None
    trained = graph.masks["train_mask"]
    return label_matrix(graph.y, trained if nodes is None else trained & nodes, graph.meta.num_classes)


def check_labels(graph: LocalGraph) -> None:
    """Raise HpcgnnError unless every training node of this rank has a label below the number of classes."""
    if graph.y is None:
        raise HpcgnnError(
            f"{graph.path} has no labels, so no classes can be learned: convert a graph with labels, or with "
            "--labels random:C to measure times only, or use --task link"
        )
    if "train_mask" not in graph.masks:
        raise HpcgnnError(
            f"{graph.path} has no split: convert the graph again with --split random:0.6,0.2,0.2 or another split"
        )
    if graph.y.dim() == 1 and bool((graph.y[graph.masks["train_mask"]] < 0).any()):
        raise HpcgnnError(
            f"{graph.path} has training nodes without a label on rank {graph.world.rank}: convert the graph again with --split"
        )
    if graph.y.numel() and graph.y.dim() == 1 and int(graph.y.max()) >= graph.meta.num_classes:
        raise HpcgnnError(
            f"{graph.path} is damaged: it has label {int(graph.y.max())}, but only {graph.meta.num_classes} classes"
        )
