"""Mutators of checkpoints: they change values that torch stored, or flip bits of the archive's records."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaign.mutations.mutation import FREE, REFUSE, SAME, Mutation, Mutator, pick

_OTHERS: tuple[Any, ...] = (
    "text",
    2.5,
    -1,
    10**30,
    None,
    [],
    [1, 2],
    {},
    {"a": 1},
    math.nan,
    True,
    torch.zeros(3),
    torch.zeros(()),
)


def of_checkpoint() -> list[Mutator]:
    """Mutators of ``last.pt``, ``best.pt`` and of the messages that ranks keep."""
    return [_field, _field, _field, _field, _tensor, _tensor, _tensor, _record, _record, _pickle, _object]


def _places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """The places of all values, including nested ones."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        found += [((*path, key), value), *_places(value, (*path, key))]
    return found


def _set(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def _field(path: Path, rng: np.random.Generator) -> Mutation:
    """Drop any field, or change its type."""
    content = torch.load(path, weights_only=True)
    places = _places(content)
    top = [place for place in places if len(place[0]) <= 2]
    where, before = pick(rng, top if rng.integers(2) else places)  # type: ignore[misc]
    name = "/".join(map(str, where))
    if rng.integers(3) == 0:
        inner = content
        for key in where[:-1]:
            inner = inner[key]
        del inner[where[-1]]
        what = f"{name} dropped"
    else:
        other = pick(rng, [other for other in _OTHERS if type(other) is not type(before)])
        _set(content, where, other)
        what = f"{name} = {str(other)[:24]}, was {type(before).__name__}"
    torch.save(content, path)
    # A best model that does not exist yet is stored as None.
    may_be_none = before is None or "= None" in what
    return Mutation(what, FREE if may_be_none and len(where) > 1 else REFUSE, str(where[0]))


def _tensor(path: Path, rng: np.random.Generator) -> Mutation:
    """Change the shape, type or a value of a tensor."""
    content = torch.load(path, weights_only=True)
    tensors = [place for place in _places(content) if isinstance(place[1], torch.Tensor) and place[1].numel()]
    if not tensors:
        return _field(path, rng)
    where, before = pick(rng, tensors)  # type: ignore[misc]
    types = ("float64", "int64", "complex64")
    how = str(pick(rng, ("half", "flat", "one more axis", "empty", "turned", *types, "nan", "a bit", "sparse")))
    changed = before.clone()
    if how == "half":
        changed = before[: len(before) // 2] if before.ndim else before.reshape(1)[:0]
    elif how == "flat":
        changed = before.reshape(-1) if before.ndim != 1 else before[None]
    elif how == "one more axis":
        changed = before[None]
    elif how == "empty":
        changed = before.reshape(-1)[:0]
    elif how == "turned":
        changed = (
            before.T.contiguous() if before.ndim == 2 and before.shape[0] != before.shape[1] else before[..., None]
        )
    elif how in types:
        changed = before.to(getattr(torch, how if str(before.dtype) != f"torch.{how}" else "float16"))
    elif how == "nan" and before.is_floating_point():
        changed.view(-1)[int(rng.integers(changed.numel()))] = math.nan
    elif how == "sparse" and before.ndim == 2:
        changed = before.to_sparse()
    else:
        _flip(changed, rng)
    _set(content, where, changed)
    torch.save(content, path)
    return Mutation(f"{'/'.join(map(str, where))} {how}", REFUSE, str(where[0]))


def _flip(tensor: torch.Tensor, rng: np.random.Generator) -> None:
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    place = int(rng.integers(raw.numel()))
    raw[place] = int(raw[place]) ^ (1 << int(rng.integers(8)))


def _record(path: Path, rng: np.random.Generator) -> Mutation:
    """Flip a bit of one record of the archive; its CRC is left as it was, or corrected."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        records = [info for info in archive.infolist() if "/data/" in info.filename and info.file_size]
        if not records:
            return _pickle(path, rng)
        info = pick(rng, records)
        data = bytearray(archive.read(info))  # type: ignore[arg-type]
    place, bit = int(rng.integers(len(data))), int(rng.integers(8))
    what = f"bit {bit} of byte {place} of {info.filename} flipped"  # type: ignore[attr-defined]
    if rng.integers(2):
        start = content.find(bytes(data), info.header_offset)  # type: ignore[attr-defined]
        content[start + place] ^= 1 << bit
        path.write_bytes(content)
        return Mutation(what, SAME, "record")
    data[place] ^= 1 << bit
    _rewrite(path, info.filename, bytes(data))  # type: ignore[attr-defined]
    return Mutation(f"{what}, with its CRC", SAME, "record")


def _pickle(path: Path, rng: np.random.Generator) -> Mutation:
    """Flip a bit of the pickle that lists the tensors, and correct its CRC."""
    with zipfile.ZipFile(path) as archive:
        name = next(info.filename for info in archive.infolist() if info.filename.endswith("data.pkl"))
        data = bytearray(archive.read(name))
    place, bit = int(rng.integers(len(data))), int(rng.integers(8))
    data[place] ^= 1 << bit
    _rewrite(path, name, bytes(data))
    return Mutation(f"bit {bit} of byte {place} of {name} flipped, with its CRC", SAME, "record")


def _rewrite(path: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members[name] = data
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def _object(path: Path, rng: np.random.Generator) -> Mutation:
    """Store another object that torch can store."""
    other: Any = pick(rng, (5, "text", [], {}, torch.zeros(3), None, {"model": {}}, {1: 2}))
    buffer = io.BytesIO()
    torch.save(other, buffer)
    path.write_bytes(buffer.getbuffer())
    return Mutation(f"the file holds {str(other)[:20]}", REFUSE)
