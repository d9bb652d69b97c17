"""Mutators of the arrays of an ``.npz`` graph. Each knows whether its result is still a valid graph."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from campaign.mutations.mutation import FREE, REFUSE, SAME, Mutation, Mutator, pick

_IDS = ("edge_index", "x_indices")
_MASKS = ("train_mask", "val_mask", "test_mask")
_NEEDED = ("num_nodes", "edge_index", "x_data", "x_indices", "x_indptr", "x_shape", "train_mask")


def of_arrays() -> list[Mutator]:
    """Mutators of npz files with the arrays of :mod:`inputs`."""
    changes = (_drop, _retype, _retype, _reshape, _reshape, _value, _value, _value)

    def changing(change: Any) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            name = str(pick(rng, sorted(arrays)))
            what, expects = change(arrays, name, rng)
            np.savez(path, **arrays)
            return Mutation(f"{name} {what}", expects, name)

        return mutate

    return [*map(changing, changes), _header, _directory]


def _drop(arrays: dict[str, Any], name: str, rng: np.random.Generator) -> tuple[str, str]:
    del arrays[name]
    is_needed = name in _NEEDED or (name == "y" and "train_mask" in arrays)
    return "dropped", REFUSE if is_needed else FREE


def _retype(arrays: dict[str, Any], name: str, rng: np.random.Generator) -> tuple[str, str]:
    array = arrays[name]
    kind = str(
        pick(
            rng,
            ("complex128", "S8", "U8", "object", "datetime64[s]", "float64", "float16", "int8", "uint64", "bool", "V4"),
        )
    )
    with np.errstate(all="ignore"):
        if kind == "V4":
            arrays[name] = np.zeros(array.shape, [("a", np.int32)])
        else:
            arrays[name] = array.astype(np.int64).astype(kind) if kind[0] == "d" else array.astype(kind)
    if kind[0] in "cSUodV":
        return f"as {kind}", REFUSE
    wants_whole = name in (*_IDS, "num_nodes", "x_indptr", "x_shape")
    if wants_whole and kind in ("float64", "float16", "bool"):
        return f"as {kind}", REFUSE
    if name in ("edge_weight",) and kind == "bool":
        return f"as {kind}", REFUSE
    back = arrays[name].astype(np.float64)
    unchanged = np.array_equal(back, array.astype(np.float64), equal_nan=True)
    return f"as {kind}", SAME if unchanged else FREE


def _reshape(arrays: dict[str, Any], name: str, rng: np.random.Generator) -> tuple[str, str]:
    array = arrays[name]
    how = str(
        pick(rng, ("half", "twice", "one more axis in front", "one more axis behind", "turned", "flat", "empty", "one"))
    )
    if how == "half":
        arrays[name] = array[: len(array) // 2] if array.ndim else array.reshape(1)[:0]
    elif how == "twice":
        arrays[name] = np.concatenate([np.atleast_1d(array)] * 2)
    elif how == "one more axis in front":
        arrays[name] = array[None]
    elif how == "one more axis behind":
        arrays[name] = array[..., None]
    elif how == "turned":
        arrays[name] = np.ascontiguousarray(array.T)
    elif how == "flat":
        arrays[name] = array.reshape(-1)
    elif how == "empty":
        arrays[name] = array.reshape(-1)[:0]
    else:
        arrays[name] = array.reshape(-1)[:1]
    changed = arrays[name]
    if changed.shape == array.shape:
        return how, SAME
    # A number, or one number for each edge or node, is also valid as a single column.
    as_column = changed.size == array.size and changed.reshape(-1).shape == array.reshape(-1).shape
    lenient = name in ("num_nodes", "x_shape", "edge_weight") or (name == "y" and how == "one more axis behind")
    return how, SAME if as_column and lenient and array.ndim < 2 else REFUSE


def _value(arrays: dict[str, Any], name: str, rng: np.random.Generator) -> tuple[str, str]:
    array = arrays[name] = arrays[name].copy()
    flat = array.reshape(-1)
    place = int(rng.integers(flat.size))
    nodes = int(arrays["num_nodes"])
    if name in _MASKS:
        arrays[name] = array = array.astype(np.uint8) if rng.integers(2) else array
        value: Any = pick(rng, (2, 255, 7)) if array.dtype == np.uint8 else not flat[place]
        array.reshape(-1)[place] = value
        overlaps = sum(arrays[mask].astype(bool) for mask in _MASKS).max() > 1
        bad = value not in (0, 1) or overlaps or (arrays["y"].ndim == 1 and (arrays["y"][array.astype(bool)] < 0).any())
        return f"[{place}] is {value}", REFUSE if bad else FREE
    if array.dtype.kind == "f":
        value = pick(rng, (math.nan, math.inf, -math.inf, 1e30, -0.0, 1e-40))
        flat[place] = value
        return f"[{place}] is {value}", FREE if math.isfinite(float(value)) else REFUSE
    choices = {
        "num_nodes": (0, -1, 10**15, nodes - 1, nodes + 1, 2**62),
        "edge_index": (-1, nodes, 2**40, -(2**62)),
        "y": (-2, 10**12, 2**62, nodes, -(2**40)) if array.ndim == 1 else (2, 255),
        "x_indices": (-1, int(arrays["x_shape"][1]) if "x_shape" in arrays else 0, 2**30),
        "x_indptr": (-1, 10**15, int(flat[-1]) + 1),
        "x_shape": (0, -1, 10**15, nodes + 5, 2**62),
    }[name]
    value = pick(rng, choices)
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    if limits is not None:
        value = min(max(int(value), limits.min), limits.max)
    flat[place] = value
    expects = REFUSE
    if name == "x_shape" and place == 1 and value == nodes + 5:
        expects = FREE  # columns without values, or columns that no longer exist
    return f"[{place}] is {value}", expects


def _header(path: Path, rng: np.random.Generator) -> Mutation:
    """Change the shape or type in the header of one array."""
    members = {info.filename: zipfile.ZipFile(path).read(info) for info in zipfile.ZipFile(path).infolist()}
    name = str(pick(rng, sorted(members)))
    array = np.lib.format.read_array(io.BytesIO(members[name]))
    shape: Any = pick(rng, ((10**15,), (2**31, 2**31), (-1,), (array.size + 1,), (2**62, 0, 5), array.shape))
    descr: Any = pick(rng, (array.dtype.str, "|O", "<f16", "S1000000000", "nonsense", array.dtype.str))
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    members[name] = buffer.getvalue() + array.tobytes()
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    same = shape == array.shape and descr == array.dtype.str
    return Mutation(f"{name}'s header tells {descr} of shape {shape}", SAME if same else REFUSE, name)


def _directory(path: Path, rng: np.random.Generator) -> Mutation:
    """Change the size of a member in the archive's directory."""
    content = bytearray(path.read_bytes())
    entries = [place for place in range(len(content) - 4) if content[place : place + 4] == b"PK\x01\x02"]
    entry, field = int(pick(rng, entries)), int(pick(rng, (16, 20, 24, 42)))
    size = int(pick(rng, (0xFFFFFFFE, 0, 1, 0x7FFFFFFF)))
    content[entry + field : entry + field + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)
    return Mutation(f"the entry at {entry} of the directory tells {size} at {field}", SAME)
