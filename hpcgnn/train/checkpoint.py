"""Checkpoints: everything a run needs to go on bit for bit, and everything prediction needs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import World, together
from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError
from hpcgnn.nn.config import describe, described

CHECKPOINT_VERSION = 1
LAST, BEST = "last.pt", "best.pt"
MESSAGES = "messages"  # a folder


def folder(run: str | Path) -> Path:
    """Where a run keeps its checkpoints."""
    return Path(run) / "checkpoints"


def save(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` (tensors and plain values) under ``path``, whole or not at all. Rank 0 alone calls this."""
    buffer = io.BytesIO()  # torch hides a full disk behind a RuntimeError; models are small beside their graph
    torch.save(content | {"version": CHECKPOINT_VERSION}, buffer)
    with h5.replacing(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def read(world: World, path: Path, model: dict[str, Any] | None) -> dict[str, Any]:
    """Read ``path`` on rank 0, give it to every rank, and check that it belongs to ``model``. Collective.

    ``model`` is the model's ``description()``; None accepts any.
    """
    with together(world, f"read checkpoint {path}"):
        payload = _read_bytes(path) if world.rank == 0 else b""
    content = torch.load(io.BytesIO(world.broadcast(payload, what="the checkpoint")), weights_only=True)
    with together(world, f"use checkpoint {path}"):
        if content.get("version") != CHECKPOINT_VERSION:
            raise HpcgnnError(f"{path} has version {content.get('version')}, this hpcgnn reads {CHECKPOINT_VERSION}")
        content["model_config"] = _with_new_settings(content["model_config"])
        if model is not None and content["model_config"] != model:
            raise HpcgnnError(
                f"{path} is a checkpoint of another model: {_differences(content['model_config'], model)}"
            )
    return content


def save_messages(world: World, run: str | Path, epoch: int, content: dict[str, Any]) -> None:
    """Write what this rank's exchanges keep between epochs, a file a rank, before ``last.pt`` names ``epoch``. Collective.

    The file of the checkpoint before stays, as ``last.pt`` is still that one's; all others go.
    """
    mine = folder(run) / MESSAGES
    with together(world, f"write {mine}"):
        mine.mkdir(exist_ok=True)
        with h5.replacing(_messages_path(run, epoch, world.rank)) as temporary:
            torch.save(content, temporary)  # not by way of memory: it may be as much as all rows that travel
        epochs = {int(path.name.partition("-")[0]) for path in mine.glob(f"*-{world.rank}.pt")}
        before = max((found for found in epochs if found < epoch), default=epoch)
        for other in epochs - {epoch, before}:
            _messages_path(run, other, world.rank).unlink()


def read_messages(world: World, run: str | Path, epoch: int) -> dict[str, Any] | None:
    """What :func:`save_messages` wrote, or None where a rank has no such file. Collective."""
    path = _messages_path(run, epoch, world.rank)
    if not world.allreduce(np.array([path.is_file()], np.int64), "min")[0]:
        return None
    with together(world, f"read {path}"):
        return _load(path, path)


def _messages_path(run: str | Path, epoch: int, rank: int) -> Path:
    return folder(run) / MESSAGES / f"{epoch}-{rank}.pt"


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise HpcgnnError(f"there is no checkpoint {path}")
    payload = path.read_bytes()
    _load(io.BytesIO(payload), path)
    return payload


def _load(source: Path | io.BytesIO, path: Path) -> dict[str, Any]:
    try:
        return torch.load(source, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises whatever its unpickler meets in a damaged file
        raise HpcgnnError(f"{path} is damaged or not a checkpoint of hpcgnn") from error


def _with_new_settings(description: dict[str, Any]) -> dict[str, Any]:
    """The description of a model, which may be older than some of its settings."""
    if "model" not in description:  # of a user's own class
        return description
    return describe(described(description), description["features"], description["classes"])


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = [name for name in wanted if found.get(name) != wanted[name]]
    return ", ".join(f"it has {name} {found.get(name)}, this run {wanted[name]}" for name in names)
