"""Scores of nodes in the order of original ids, from any checkpoint, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.data import h5, shared_file
from hpcgnn.data.digests import ALL, differences
from hpcgnn.data.schema import Rule
from hpcgnn.data.stored import look_in
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphModel, build_model
from hpcgnn.nn.config import MODELS, described
from hpcgnn.nn.decoders import Decoder
from hpcgnn.nn.halo import identity
from hpcgnn.sources.text import open_text
from hpcgnn.train.checkpoint import check_weights
from hpcgnn.train.gather import dealt
from hpcgnn.train.owned_rows import OwnedRows, shared_state
from hpcgnn.train.tasks import check_labels, features_of, training_labels
from hpcgnn.world import World, raise_on_all_ranks

PREDICTIONS_KIND, PREDICTIONS_VERSION = "hpcgnn-predictions", 1
_PER_PAIR = "pair_scores"
_ARRAYS = ("scores", "embeddings", _PER_PAIR)


@torch.no_grad()
def predict(graph: LocalGraph, content: dict[str, Any], strategy: str = "hybrid") -> torch.Tensor:
    """(n, C) scores of this rank's nodes, in the order of ``graph``, from the ``content`` of a checkpoint. Collective.

    A link prediction model gives (n, F) embeddings, with messages along all edges of ``graph``. A model with labels as inputs
    gets the labels of all training nodes, and no others. Raises HpcgnnError on every rank, for another number of features, for a
    model of the user's own class, and for weights that do not fit the model.
    """
    return _applied(_model_of(graph, content, strategy), graph)


def other_data(graph: LocalGraph, content: dict[str, Any]) -> str:
    """The data that the model reads and in which ``graph`` differs from the graph of the training, in words; empty if none does.
    Labels and splits count only if labels are inputs."""
    description = content["model_config"]
    has_label_inputs = "model" in description and described(description).label_inputs
    return differences(content.get("data", {}), graph.data, ALL if has_label_inputs else ("nodes", "edges", "features"))


def _applied(model: GraphModel, graph: LocalGraph) -> torch.Tensor:
    labels = training_labels(graph) if model.config.label_inputs else None
    return model(features_of(graph, model), labels)


def _model_of(graph: LocalGraph, content: dict[str, Any], strategy: str = "hybrid") -> GraphModel:
    """The model of a checkpoint's ``content``, in evaluation mode, for a graph with as many features. Collective."""
    description = content["model_config"]
    with raise_on_all_ranks(graph.world, f"use a checkpoint on {graph.path}"):
        if "model" not in description:
            raise HpcgnnError(
                f"the checkpoint is of {description['class']}, a class of your own program: load the weights there with "
                "load_state_dict"
            )
        config = described(description)
        width, classes = description["features"], description["classes"]
        if width != graph.meta.num_features:
            raise HpcgnnError(
                f"the checkpoint was made for {width} features, but {graph.path} has {graph.meta.num_features}"
            )
        wanted, found = description.get("edge_features", 0), graph.meta.num_edge_features
        if MODELS[config.model].uses_edge_features and wanted != found:
            raise HpcgnnError(
                f"the checkpoint was made for {wanted} features of an edge, but edges of {graph.path} have {found}"
            )
        if config.label_inputs:
            check_labels(graph)
    graph = replace(graph, meta=replace(graph.meta, num_classes=classes))  # it may have other labels, or none
    model = build_model(config, graph, strategy=strategy)
    with raise_on_all_ranks(graph.world, f"use a checkpoint on {graph.path}"):
        check_weights(content["model"], shared_state(model), content.get("path", "the checkpoint"))
    model.load_state_dict(content["model"], strict=False)  # the rows of nodes are in a file of their own
    OwnedRows(graph.world, model).load_rows(content)
    model.eval()
    return model


def of_links(graph: LocalGraph, content: dict[str, Any]) -> tuple[Decoder, Callable[[], torch.Tensor]]:
    """The decoder of a checkpoint's ``content``, and a collective function that returns the (n, F) embeddings of this rank's
    nodes, which it compares. Collective. Raises HpcgnnError, on every rank, for a model without a decoder."""
    model = _model_of(graph, content)
    if (decoder := model.decoder) is None:
        raise HpcgnnError(
            "the checkpoint's model has no decoder, so it scores no links: train with --task link", agreed=True
        )
    return decoder, lambda: decoder.embed(_applied(model, graph))


@torch.no_grad()
def score_pairs(graph: LocalGraph, content: dict[str, Any], pairs: np.ndarray) -> torch.Tensor:
    """(m,) scores of this rank's (m, 2) pairs of original ids, from the ``content`` of a checkpoint; for a decoder that has
    relations, (m, 3) source, target and type of edges. Collective."""
    world, (decoder, embed) = graph.world, of_links(graph, content)
    with raise_on_all_ranks(world, "score pairs of nodes"):
        columns = 3 if decoder.has_relations else 2
        if pairs.shape[1] != columns:
            words = "a source, a target and a type of edges" if decoder.has_relations else "two nodes"
            raise HpcgnnError(
                f"a pair of a model with --decoder {content['model_config']['decoder']} is {words}: give {columns} numbers in "
                f"each line, not {pairs.shape[1]}"
            )
        nodes, relation = pairs[:, :2], pairs[:, 2:].ravel()
        _check_numbers("nodes", nodes, graph.meta.num_nodes)
        _check_numbers("types of edges", relation, graph.meta.num_edge_types)
    bounds, slab = _dealt_by_id(graph, embed())
    torch_device = graph.device.torch_device
    source, target = (torch.from_numpy(world.rows_of(bounds, slab, ids)).to(torch_device) for ids in nodes.T)
    queries = decoder.query(source, torch.from_numpy(relation).to(torch_device), "source")
    return decoder(identity(len(pairs)).to(torch_device), queries, target)


def _check_numbers(what: str, numbers: np.ndarray, count: int) -> None:
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise HpcgnnError(f"pairs must be of {what} 0 to {count - 1}, not {numbers.min()} to {numbers.max()}")


def read_pairs(world: World, path: Path) -> np.ndarray:
    """(m, 2) int64, or (m, 3) with types of edges: this rank's consecutive share of the pairs in a file: text with two or three
    numbers in each line, which takes O(pairs) time and memory on each rank, or .npy. Collective."""
    with raise_on_all_ranks(world, f"read {path}"):
        if path.exists() and not path.is_file():  # a pipe would be waited for, and a device read without end
            raise HpcgnnError(f"cannot read pairs from {path}: it is not a file")
        try:
            is_array = path.suffix == ".npy"
            pairs = np.load(path, mmap_mode="r", allow_pickle=False) if is_array else _pairs_in_text(path)
        except Exception as error:
            # numpy gives a damaged header to Python's parsers, which raise what their parts raise
            raise HpcgnnError(f"cannot read pairs from {path}: {error}") from error
        are_pairs = isinstance(pairs, np.ndarray) and pairs.ndim == 2 and pairs.shape[1] in (2, 3)
        if not are_pairs or not np.issubdtype(pairs.dtype, np.integer):
            raise HpcgnnError(
                f"{path} must hold two node ids in each line, and for a model of relations a type of edges, or be a .npy file of "
                "integers with shape (pairs, 2) or (pairs, 3)"
            )
        bounds = np.arange(world.size + 1) * len(pairs) // world.size
        return np.array(pairs[bounds[world.rank] : bounds[world.rank + 1]], np.int64)


def _pairs_in_text(path: Path) -> np.ndarray:
    """The whole numbers of a text; (0, 0) where no line has any, because numpy warns of such a file."""
    with open_text(path) as lines:
        if not any(line.partition("#")[0].strip() for line in lines):
            return np.empty((0, 0), np.int64)
    with open_text(path) as lines:
        return np.loadtxt(lines, np.int64, ndmin=2)


def _dealt_by_id(graph: LocalGraph, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return dealt(graph.world, index_array(graph.original_ids), graph.meta.num_nodes, host_values(rows.float()))


def write_predictions(
    graph: LocalGraph,
    scores: torch.Tensor,
    path: Path,
    *,
    force: bool = False,
    what: str = "scores",
    inputs: Iterable[Path] = (),
) -> None:
    """Write ``/scores`` (N, C) float32, or another array ``what``, in the order of original ids: each rank writes the slab of a
    range of ids. inputs: files, beside the graph, that the output must not replace. Collective."""
    bounds, slab = _dealt_by_id(graph, scores)
    shape, first = (graph.meta.num_nodes, scores.shape[1]), int(bounds[graph.world.rank])
    _write_slab(graph, what, shape, first, slab, path, force, inputs)


def write_pair_scores(
    graph: LocalGraph, scores: torch.Tensor, path: Path, *, force: bool = False, inputs: Iterable[Path] = ()
) -> None:
    """Write ``/pair_scores`` (pairs,) float32 in the order of ranks, which is that of :func:`read_pairs`. Collective."""
    count = np.array([scores.numel()])
    first, total = int(graph.world.exscan(count)[0]), int(graph.world.allreduce(count)[0])
    _write_slab(graph, _PER_PAIR, (total,), first, host_values(scores.float()), path, force, inputs)


def _write_slab(
    graph: LocalGraph,
    name: str,
    shape: tuple[int, ...],
    first: int,
    slab: np.ndarray,
    path: Path,
    force: bool,
    inputs: Iterable[Path],
) -> None:
    world, schema = graph.world, {name: (shape, np.dtype(np.float32))}
    about = {"parts_uuid": graph.uuid, "data": json.dumps(graph.data)}
    attributes = h5.new_header(PREDICTIONS_KIND, PREDICTIONS_VERSION) | about
    with (
        shared_file.replacing(world, path, force=force, inputs=[graph.path, *inputs]) as temporary,
        shared_file.writing(world, temporary, schema, attributes) as writer,
        raise_on_all_ranks(world, f"write {path}"),
    ):
        writer.write(name, first, slab)


def look_at_predictions(path: Path) -> dict[str, Any]:
    """The verified content of a file of predictions. Not collective. Raises HpcgnnError if it is another kind of file,
    incomplete, or has values that are not finite."""
    with h5.open_checked(path, PREDICTIONS_KIND, (PREDICTIONS_VERSION,)) as file:
        names = [name for name in _ARRAYS if h5.child(file, name) is not None]
        if len(names) != 1:
            raise h5.damaged(path, f"it has {len(names)} of {', '.join(_ARRAYS)}, not one")
        (name,) = names
        with h5.reading(path, name):
            shape = file[name].shape
        if len(shape) != (1 if name == _PER_PAIR else 2):
            raise h5.damaged(path, f"{name} has shape {shape}")
        look_in(file, name, Rule(shape, np.dtype(np.float32)), (0, shape[0]))
        with h5.reading(file, "attribute data"):  # which files of earlier versions do not have
            text = h5.attribute(file, "data", str) if "data" in file.attrs else "{}"
            data = {str(key): str(value) for key, value in json.loads(text).items()}
        return {
            "kind": PREDICTIONS_KIND,
            "version": PREDICTIONS_VERSION,
            "uuid": h5.attribute(file, "uuid", str),
            "parts_uuid": h5.attribute(file, "parts_uuid", str),
            "data": data,
            "arrays": 1,
            "bytes": 4 * int(np.prod(shape, dtype=np.int64)),
            "shape": list(shape),
            "checksums": False,
        }
