"""Checkpoints: the state with which a run continues bit for bit, and the weights that predictions need."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count, Finite
from hpcgnn.data import h5
from hpcgnn.data.digests import differences
from hpcgnn.data.h5 import HDF5, begins_with
from hpcgnn.nn.config import describe, described
from hpcgnn.train import archive
from hpcgnn.world import World, raise_on_all_ranks

_LOG = logging.getLogger("hpcgnn")

CHECKPOINT_VERSION = 2  # 1: without a digest
LAST, BEST = "last.pt", "best.pt"
MESSAGES = "messages"  # a folder
_MESSAGES = re.compile(r"(\d{1,18})-\d+\.pt")
_MOST_WIDTH = 4096  # of a model that its weights do not show; see :func:`_check_widths`


class Checkpoint(msgspec.Struct):
    """The content of ``best.pt``.

    model_config: the model's ``description()``. model: its weights. next_epoch: number of epochs that were trained. data: of the
    graph (:func:`hpcgnn.data.digests.in_text`), empty in older files. The other fields must be the same in a run that continues
    this one; they depend on the task.
    """

    version: int
    model_config: dict[str, Any]
    parts_uuid: str
    model: dict[str, torch.Tensor]
    next_epoch: Count
    data: dict[str, str] = {}
    task: str | None = None
    metric: str | None = None
    link_split: list[Finite] | None = None
    link_seed: Count | None = None


class BestState(msgspec.Struct, forbid_unknown_fields=True):
    """The state of :class:`hpcgnn.train.config.Best`."""

    epoch: int
    val_metric: Finite | None
    test_metric: Finite | None
    plateaus: Count
    plateau_since: int
    evaluated: int
    improved: int = -1


class Moments(msgspec.Struct):
    """The moments of Adam for one parameter."""

    step: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor


class Group(msgspec.Struct):
    """A parameter group; parameters are named by their numbers."""

    params: list[Count]
    lr: Finite
    betas: tuple[Finite, Finite]
    eps: Finite
    weight_decay: Finite


class OptimiserState(msgspec.Struct):
    """The state of :class:`hpcgnn.train.optimiser.Adam`."""

    state: dict[int, Moments]
    param_groups: list[Group]


class PoliciesState(msgspec.Struct):
    """The state of :class:`hpcgnn.policy.policies.Policies`."""

    names: list[str]
    state: dict[str, Any]


class Last(Checkpoint, kw_only=True):
    """The content of ``last.pt``, in addition to that of ``best.pt``. policies: None in files of the first versions."""

    optimiser: OptimiserState
    best: BestState
    best_model: dict[str, torch.Tensor] | None
    seed: Count
    policies: PoliciesState | None = None


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
    """Read ``path`` on rank 0, send it to every rank, and check that it belongs to ``model`` and to ``data``. Collective.

    model: the model's ``description()``; None accepts any model. :func:`check_weights` compares the weights. data: of the graph;
    None accepts any graph.
    """
    content: dict[str, Any] = {}
    payload = b""
    with raise_on_all_ranks(world, f"read checkpoint {path}"):
        if world.rank == 0:
            payload = _read_bytes(path)
            content = archive.read(io.BytesIO(payload), path)
            _check_content(content, kind, path)
    payload = world.broadcast(payload, what="the checkpoint")
    with raise_on_all_ranks(world, f"use checkpoint {path}"):
        if world.rank > 0:
            content = archive.read(io.BytesIO(payload), path)
        content["model_config"] = _with_new_settings(content["model_config"])
        if differing := differences(content.get("data", {}), data or {}):
            raise HpcgnnError(
                f"{path} was made with another graph, which differs in {differing}: resume with parts of that graph, or choose "
                "another --out for this one"
            )
        if model is not None and content["model_config"] != model:
            raise HpcgnnError(
                f"{path} is a checkpoint of another model: {_differences(content['model_config'], model)}"
            )
        content["path"] = str(path)
    return content


def look_at(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, or of the messages that a rank keeps beside it (which have ``rows``). Not collective.

    Checksums, the digest and the types of all fields are verified.
    """
    content = archive.read(path, path)
    if "model" not in content and isinstance(content.get("rows"), torch.Tensor):
        return content
    _check_content(content, Last if "optimiser" in content else Checkpoint, path)
    return content


def _check_content(content: dict[str, Any], kind: type[Checkpoint], path: Path) -> None:
    """Raise HpcgnnError unless ``content`` has the fields of a checkpoint."""
    version = content.get("version")
    if isinstance(version, int) and not 1 <= version <= CHECKPOINT_VERSION:
        advice = ": update hpcgnn" if version > CHECKPOINT_VERSION else ""
        raise HpcgnnError(
            f"{path} has version {version}, but this hpcgnn reads versions 1 to {CHECKPOINT_VERSION}{advice}"
        )
    typed.checked(content, kind, str(path))
    for name in ("model", "best_model"):
        _check_finite(content.get(name) or {}, path)
    _check_widths(content["model_config"], content["model"], path)


def _check_finite(weights: Mapping[str, torch.Tensor], path: object) -> None:
    for name, values in weights.items():
        if not bool(torch.isfinite(values).all()):
            raise HpcgnnError(f"{path} has NaN or infinite values in the weights {name}: use an earlier checkpoint")


def _check_widths(description: dict[str, Any], weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raise HpcgnnError if the description would make a model that is far larger than the weights in the file."""
    if isinstance(description.get("class"), str):  # a user's own class, which the user's program makes
        return
    about = typed.checked(description, _Widths, f"{path}: model_config")
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


class _Widths(msgspec.Struct):
    model: str
    features: Count
    classes: Count
    hidden: Count
    layers: Count = 1
    decoder: str = "none"


def has_parts(content: dict[str, Any], uuid: str, data: Mapping[str, str]) -> bool:
    """Return whether a checkpoint was made with the parts ``uuid`` of a graph with ``data``; warn where it was not."""
    if content["parts_uuid"] == uuid:
        return True
    known = "edges" in content.get("data", {}) and "edges" in data
    doubt = "" if known else "; an older file does not tell whether they are parts of the same graph"
    _LOG.warning(
        "%s was made with other parts: training continues, but its results differ in the last bits%s",
        content["path"],
        doubt,
    )
    return False


def check_weights(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], where: object) -> None:
    """Raise HpcgnnError unless ``found`` has the names, shapes and types of ``wanted``. where: the file, for the message."""
    for name in [*wanted, *found]:
        mine, theirs = wanted.get(name), found.get(name)
        if mine is None or theirs is None:
            problem = (
                "weights {}, which this model does not have" if mine is None else "no weights {}, which this model has"
            )
            raise HpcgnnError(f"{where} has {problem.format(name)}")
        if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
            raise HpcgnnError(f"{where} has weights {name} of {_shape(theirs)}, but this model has {_shape(mine)}")


def check_optimiser(state: dict[str, Any], parameters: list[list[torch.Tensor]], where: object) -> None:
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


def _shape(values: torch.Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"


def save_messages(world: World, run: str | Path, epoch: int, content: dict[str, Any]) -> None:
    """Write the rows that this rank's exchanges keep between epochs, in one file for each rank. Collective.

    This happens before ``last.pt`` names ``epoch``. The file of the previous checkpoint remains, because ``last.pt`` still
    refers to it; older files are removed.
    """
    mine = folder(run) / MESSAGES
    with raise_on_all_ranks(world, f"write {mine}"):
        mine.mkdir(exist_ok=True)
        with whole_file.replacing(messages_path(run, epoch, world.rank), cleans=False) as temporary:
            archive.write(
                temporary, content | {"rank": world.rank}
            )  # streamed to the file, because the content may be as large as all boundary rows
        names = (_MESSAGES.fullmatch(path.name) for path in mine.glob(f"*-{world.rank}.pt"))
        epochs = {int(name[1]) for name in names if name}
        before = max((found for found in epochs if found < epoch), default=epoch)
        for other in epochs - {epoch, before}:
            messages_path(run, other, world.rank).unlink()


def read_messages(world: World, run: str | Path, epoch: int) -> dict[str, Any] | None:
    """The state that :func:`save_messages` wrote, or None if any rank has no such file. Collective."""
    path = messages_path(run, epoch, world.rank)
    with raise_on_all_ranks(world, f"read {path}"):
        if path.exists() and not path.is_file():
            raise HpcgnnError(f"{path} is not a file")
    if not world.allreduce(np.array([path.is_file()], np.int64), "min")[0]:
        return None
    with raise_on_all_ranks(world, f"read {path}"):
        content = archive.read(path, path)
        if not isinstance(content.get("rows"), torch.Tensor):  # rows exist in files of all versions
            raise HpcgnnError(f"{path} is damaged: rows is missing, or not a tensor")
        rank = content.get("rank", world.rank)  # older files have no rank, so their name counts
        if rank != world.rank:
            raise HpcgnnError(f"{path} belongs to rank {rank}: rename the files in this folder to their original names")
    return content


def messages_path(run: str | Path, epoch: int, rank: int) -> Path:
    """The file with the rows that the exchanges of a rank keep, for the checkpoint of ``epoch``."""
    return folder(run) / MESSAGES / f"{epoch}-{rank}.pt"


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise HpcgnnError(f"there is no checkpoint {path}: give a run folder or a checkpoint file that exists")
    if begins_with(path, HDF5):
        raise HpcgnnError(f"{path} is {h5.in_words(h5.kind_of(path))}, but a run folder or a checkpoint is needed")
    return path.read_bytes()


def _with_new_settings(description: dict[str, Any]) -> dict[str, Any]:
    """The description of a model, which may be older than some of its settings."""
    if "model" not in description:  # of a user's own class
        return description
    return describe(described(description), description["features"], description["classes"])


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = [name for name in wanted if found.get(name) != wanted[name]]
    return ", ".join(f"it has {name} {found.get(name)}, this run has {wanted[name]}" for name in names)
