"""Scores for every node under global ids, from any checkpoint, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn import shared_file
from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.nn import build_model
from hpcgnn.nn.config import described
from hpcgnn.train.label_propagation import check_labels, training_labels
from hpcgnn.train.trainer import with_dtype

PREDICTIONS_KIND, PREDICTIONS_VERSION = "hpcgnn-predictions", 1


@torch.no_grad()
def predict(graph: LocalGraph, content: dict[str, Any], strategy: str = "hybrid") -> torch.Tensor:
    """(n, C) scores of this rank's nodes, in the order of ``graph``, from a checkpoint's ``content``. Collective.

    A model that takes labels as inputs is given those of all training nodes of ``graph``, and no others.
    """
    description = content["model_config"]
    with graph.world.together(f"use a checkpoint on {graph.path}"):
        if "model" not in description:
            raise HpcgnnError(
                f"the checkpoint is of {description['class']}, a class of your own program: load its weights there with "
                "load_state_dict"
            )
        widths = description["features"], description["classes"]
        if widths != (graph.meta.num_features, graph.meta.num_classes):
            raise HpcgnnError(
                f"the checkpoint was made for {widths[0]} features and {widths[1]} classes, "
                f"but {graph.path} has {graph.meta.num_features} and {graph.meta.num_classes}"
            )
        config = described(description)
        if config.label_inputs:
            check_labels(graph)
    model = build_model(config, graph, strategy=strategy)
    model.load_state_dict(content["model"])
    model.eval()
    labels = training_labels(graph) if config.label_inputs else None
    return model(with_dtype(graph.features, torch.float32), labels)


def write_predictions(graph: LocalGraph, scores: torch.Tensor, path: Path, *, force: bool = False) -> None:
    """Write ``/scores`` (N, C) float32 in the order of original ids. Collective.

    Rows are dealt out by id range first, so that each rank writes one slab; no rank holds all scores.
    """
    world, num_nodes = graph.world, graph.meta.num_nodes
    bounds = np.arange(world.size + 1) * num_nodes // world.size
    ids = graph.original_ids.numpy()
    order = np.argsort(ids, kind="stable")
    counts = np.diff(np.searchsorted(ids[order], bounds))
    ids, _ = world.alltoallv(ids[order], counts)
    rows, _ = world.alltoallv(scores.numpy().astype(np.float32)[order], counts)
    slab = np.empty_like(rows)
    slab[ids - bounds[world.rank]] = rows
    schema = {"scores": ((num_nodes, scores.shape[1]), np.dtype(np.float32))}
    attributes = h5.new_header(PREDICTIONS_KIND, PREDICTIONS_VERSION) | {"parts_uuid": graph.uuid}
    with (
        shared_file.replacing(world, path, force=force) as temporary,
        shared_file.writing(world, temporary, schema, attributes) as writer,
        world.together(f"write {path}"),
    ):
        writer.write("scores", int(bounds[world.rank]), slab)
