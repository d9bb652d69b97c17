"""Checkpoints: the state with which a run continues bit for bit, and the weights that predictions need."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count, Finite
from hpcgnn.data import h5
from hpcgnn.data.digests import differences
from hpcgnn.data.h5 import HDF5, begins_with
from hpcgnn.nn.config import OF_EDGES, describe, described
from hpcgnn.train import archive
from hpcgnn.world import World, raise_on_all_ranks

_LOG = logging.getLogger("hpcgnn")

CHECKPOINT_VERSION = 2  # 1: without a digest
LAST, BEST = "last.pt", "best.pt"
MESSAGES = "messages"  # a folder
_MOST_WIDTH = 4096  # of a model that its weights do not show; see :func:`_check_widths`


class Checkpoint(msgspec.Struct):
    """The content of ``best.pt``.

    model_config: the model's ``description()``. next_epoch: number of epochs that were trained. data: of the graph
    (:func:`hpcgnn.data.digests.in_text`), empty in older files. node_rows: digests of the files "last" and "best" of learned rows
    of nodes, and of the "messages" that ranks keep, or "". The fields from ``task`` on depend on the task, and must be the same
    in a run that continues this one.
    """

    version: int
    model_config: dict[str, Any]
    parts_uuid: str
    model: dict[str, Tensor]
    next_epoch: Count
    data: dict[str, str] = {}
    node_rows: dict[str, str] = {}
    task: str | None = None
    metric: str | None = None
    link_split: list[Finite] | None = None
    link_seed: Count | None = None


class _BestState(msgspec.Struct, forbid_unknown_fields=True):
    """The state of :class:`hpcgnn.train.config.Best`."""

    epoch: int
    val_metric: Finite | None
    test_metric: Finite | None
    plateaus: Count
    plateau_since: int
    evaluated: int
    improved: int = -1


class _Moments(msgspec.Struct):
    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class _Group(msgspec.Struct):
    params: list[Count]
    lr: Finite
    betas: tuple[Finite, Finite]
    eps: Finite
    weight_decay: Finite


class _OptimiserState(msgspec.Struct):
    """The state of an optimiser, in which parameters are named by their numbers."""

    state: dict[int, _Moments]
    param_groups: list[_Group]


class _PoliciesState(msgspec.Struct):
    names: list[str]
    state: dict[str, Any]


class _Widths(msgspec.Struct):
    model: str
    features: Count
    classes: Count
    hidden: Count
    layers: Count = 1
    decoder: str = "none"


class Last(Checkpoint, kw_only=True):
    """The content of ``last.pt``, in addition to that of ``best.pt``. policies: None in files of the first versions."""

    optimiser: _OptimiserState
    best: _BestState
    best_model: dict[str, Tensor] | None
    seed: Count
    policies: _PoliciesState | None = None


def folder(run: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run) / "checkpoints"


def save(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` (tensors and plain values) to ``path``, completely or not at all. Only rank 0 calls this."""
    with whole_file.replacing(path, cleans=False) as temporary:
        archive.write(temporary, content | {"version": CHECKPOINT_VERSION})


def read(
    world: World,
    path: Path,
    model: dict[str, Any] | None,
    kind: type[Checkpoint] = Checkpoint,
    data: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read ``path`` on rank 0, send it to every rank, and check that it belongs to ``model``, a model's ``description()``, and to
    the ``data`` of a graph; None accepts any. :func:`check_weights` compares the weights. Collective."""
    content: dict[str, Any] = {}
    payload = b""
    with raise_on_all_ranks(world, f"read checkpoint {path}"):
        if world.rank == 0:
            if not path.is_file():
                raise HpcgnnError(f"there is no checkpoint {path}: give a run folder or a checkpoint file that exists")
            if begins_with(path, HDF5):
                what = h5.in_words(h5.kind_of(path))
                raise HpcgnnError(f"{path} is {what}, but a run folder or a checkpoint is needed")
            payload = path.read_bytes()
            content = archive.read(io.BytesIO(payload), path)
            _check_content(content, kind, path)
    payload = world.broadcast(payload, what="the checkpoint")
    with raise_on_all_ranks(world, f"use checkpoint {path}"):
        if world.rank > 0:
            content = archive.read(io.BytesIO(payload), path)
        found = content["model_config"]
        if "model" in found:  # not of a user's own class; the file may be older than some settings
            kept = {name: found[name] for name in OF_EDGES if name in found}  # which no setting tells
            found = content["model_config"] = describe(described(found), found["features"], found["classes"]) | kept
        if differing := differences(content.get("data", {}), data or {}):
            raise HpcgnnError(
                f"{path} was made with another graph, which differs in {differing}: resume with parts of that graph, or choose "
                "another --out for this one"
            )
        if model is not None and found != model:
            names = [name for name in model if found.get(name) != model[name]]
            told = ", ".join(f"it has {name} {found.get(name)}, this run has {model[name]}" for name in names)
            raise HpcgnnError(f"{path} is a checkpoint of another model: {told}")
        content["path"] = str(path)
    return content


def look_at(path: Path) -> dict[str, Any]:
    """The verified content of a checkpoint, or of the messages that a rank keeps beside it (which have ``rows``). Not
    collective."""
    content = archive.read(path, path)
    if "model" not in content and isinstance(content.get("rows"), Tensor):
        return content
    _check_content(content, Last if "optimiser" in content else Checkpoint, path)
    return content


def _check_content(content: dict[str, Any], kind: type[Checkpoint], path: Path) -> None:
    version = content.get("version")
    if isinstance(version, int) and not 1 <= version <= CHECKPOINT_VERSION:
        advice = ": update hpcgnn" if version > CHECKPOINT_VERSION else ""
        raise HpcgnnError(
            f"{path} has version {version}, but this hpcgnn reads versions 1 to {CHECKPOINT_VERSION}{advice}"
        )
    typed.validated(content, kind, str(path))
    for name in ("model", "best_model"):
        _check_finite(content.get(name) or {}, path)
    _check_widths(content["model_config"], content["model"], path)


def _check_finite(weights: Mapping[str, Tensor], path: object) -> None:
    for name, values in weights.items():
        if not bool(torch.isfinite(values).all()):
            raise HpcgnnError(f"{path} has NaN or infinite values in the weights {name}: use an earlier checkpoint")


def _check_widths(description: dict[str, Any], weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise HpcgnnError if the description would make a model that is far larger than the weights in the file."""
    if isinstance(description.get("class"), str):  # a user's own class, which the user's program makes
        return
    about = typed.validated(description, _Widths, f"{path}: model_config")
    sizes = {size for values in weights.values() for size in values.shape}
    shown = {"features": about.features, "hidden": about.hidden if about.layers > 1 else 0}
    shown |= {"classes": about.classes} if about.decoder == "none" else {}
    for name, width in shown.items():
        if width > _MOST_WIDTH and width not in sizes:
            raise HpcgnnError(f"{path} is damaged: model_config has {name} {width}, but no weights have this width")
    if about.layers > max(len(weights), 1):
        raise HpcgnnError(
            f"{path} is damaged: model_config has {about.layers} layers, but there are only {len(weights)} weights"
        )


def has_parts(content: dict[str, Any], uuid: str, data: Mapping[str, str]) -> bool:
    """Return whether a checkpoint was made with the parts ``uuid`` of a graph with ``data``; warn where it was not."""
    if content["parts_uuid"] == uuid:
        return True
    known = "edges" in content.get("data", {}) and "edges" in data
    doubt = "" if known else "; an older file does not tell whether they are parts of the same graph"
    sentence = "%s was made with other parts: training continues, but its results differ in the last bits%s"
    _LOG.warning(sentence, content["path"], doubt)
    return False


def check_weights(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: object) -> None:
    """Raise HpcgnnError unless ``found`` has the names, shapes and types of ``wanted``. where: the file, for the message."""
    for name in [*wanted, *found]:
        mine, theirs = wanted.get(name), found.get(name)
        if mine is None:
            raise HpcgnnError(f"{where} has weights {name}, which this model does not have")
        if theirs is None:
            raise HpcgnnError(f"{where} has no weights {name}, which this model has")
        if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
            raise HpcgnnError(f"{where} has weights {name} of {_shape(theirs)}, but this model has {_shape(mine)}")


def check_optimiser(state: dict[str, Any], parameters: list[list[Tensor]], where: object) -> None:
    """Raise HpcgnnError unless ``state`` belongs to an optimiser of these parameter groups. where: the file, for the message."""
    numbers = iter(range(sum(map(len, parameters))))
    if [group["params"] for group in state["param_groups"]] != [[next(numbers) for _ in group] for group in parameters]:
        raise HpcgnnError(
            f"{where} has other groups of parameters than this run: give --dense-weight-decay in both runs or in none"
        )
    every = [parameter for group in parameters for parameter in group]
    for number, moments in state["state"].items():
        if not 0 <= number < len(every):
            raise HpcgnnError(f"{where} has an optimiser with more parameters than this model")
        mine = every[number].detach()
        wanted = {"step": torch.tensor(0.0), "exp_avg": mine, "exp_avg_sq": mine}
        check_weights({name: moments[name] for name in wanted}, wanted, f"{where}: optimiser, parameter {number}:")
        _check_finite({f"of the optimiser, parameter {number}: {name}": moments[name] for name in wanted}, where)


def _shape(values: Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
