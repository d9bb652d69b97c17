"""Mutators of ``graph.h5`` and ``parts.h5``. Each knows whether the schema alone forbids its result.

Values within their ranges are forbidden only if a checksum covers them; ``checked`` says whether one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from campaign.mutations.mutation import FREE, REFUSE, SAME, Mutation, Mutator, pick
from hpcgnn.data.sealing import seal

_OFFSETS = ("indptr", "node_offsets", "_offsets")
_MASKS = ("train_mask", "val_mask", "test_mask")
# The history of a file: no reader uses it, but a checksum covers it.
_TOLD = ("graph_uuid", "method", "objective", "balance", "seed")


def of_hdf5(*, checked: bool) -> list[Mutator]:
    """Mutators of HDF5 files. checked: the file has checksums, so that any other value is forbidden."""
    changes: tuple[Callable[..., Mutation | None], ...] = (
        _drop, _rename, _retype, _retype, _reshape, _reshape, _value, _value, _value, _value, _value, _swap, _duplicate,
        _attribute, _attribute, _attribute, _replace, _huge, _chunked,
    )  # fmt: skip

    def changing(change: Callable[..., Mutation | None]) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            with h5py.File(path, "r+", locking=False) as file:
                while True:  # some changes do nothing to some datasets
                    name = str(pick(rng, datasets(file)))
                    if mutation := change(file, name, rng, REFUSE if checked else FREE):
                        return mutation

        return mutate

    return [changing(change) for change in changes]


def of_resealed_hdf5() -> list[Mutator]:
    """The same with new checksums, if the file can still be read to compute them, so that only the values are wrong."""

    def resealing(mutator: Mutator) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            mutation = mutator(path, rng)
            try:
                seal(path)
            except Exception:  # the file stays damaged, with the old checksums
                return mutation
            # If the checksums were wrong, they are correct now.
            expects = SAME if "checksum" in mutation.touches else mutation.expects
            return replace(mutation, what=f"{mutation.what}, with new checksums", expects=expects)

        return mutate

    return [resealing(mutator) for mutator in of_hdf5(checked=False)]


def datasets(file: h5py.File) -> list[str]:
    """The names of all datasets."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(names)


def _drop(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation:
    del file[name]
    return Mutation(f"{name} dropped", REFUSE, name)


def _rename(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation:
    file.move(name, f"{name}_")
    return Mutation(f"{name} renamed", REFUSE, name)


def _again(file: h5py.File, name: str, array: np.ndarray, **how: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=array, **how).attrs.update(attributes)


def _retype(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    array = file[name][()]
    kind = str(
        pick(rng, ("complex64", "S8", "float64", "float32", "int8", "int32", "int64", "uint64", "bool", ">i8", "void"))
    )
    with np.errstate(all="ignore"):
        try:
            changed = array.astype([("a", np.int32)]) if kind == "void" else array.astype(kind)
        except (TypeError, ValueError):
            return None
    if changed.dtype == array.dtype:
        return None
    _again(file, name, changed)
    # A wider or narrower integer type with the same values is harmless if it is read as such.
    alike = array.dtype.kind in "iu" and changed.dtype.kind in "iu" and np.array_equal(array, changed)
    wider = array.dtype.kind == changed.dtype.kind == "f"
    return Mutation(f"{name} as {kind}", SAME if alike or wider else REFUSE, name)


def _reshape(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    array = file[name][()]
    how = str(
        pick(rng, ("half", "one less", "one more", "twice", "one more axis", "turned", "flat", "empty", "a number"))
    )
    changed = {
        "half": lambda: array[: len(array) // 2],
        "one less": lambda: array[:-1],
        "one more": lambda: np.concatenate([array, array[-1:]]),
        "twice": lambda: np.concatenate([array, array]),
        "one more axis": lambda: array[..., None],
        "turned": lambda: np.ascontiguousarray(array.T),
        "flat": lambda: array.reshape(-1),
        "empty": lambda: array[:0],
        "a number": lambda: array.reshape(-1)[0] if array.size else np.float32(0),
    }[how]()
    if np.shape(changed) == array.shape:
        return None
    _again(file, name, np.asarray(changed))
    return Mutation(f"{name} {how}: {array.shape} is {np.shape(changed)}", REFUSE, name)


def _value(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    """Change one value, within its range or beyond."""
    dataset = file[name]
    array = dataset[()]
    if not array.size or array.dtype == np.bool_:
        return None
    place = tuple(int(rng.integers(size)) for size in array.shape)
    values = _values(file, name, array, place, other)
    value, expects = pick(rng, values)  # type: ignore[misc]
    if value == array[place]:
        return None
    with np.errstate(over="ignore"):
        dataset[place] = np.array(value).astype(array.dtype)
    return Mutation(f"{name}{list(place)} = {value}, was {array[place]}", expects, name)


def _values(file: h5py.File, name: str, array: np.ndarray, place: tuple[int, ...], other: str) -> list[tuple[Any, str]]:
    """Values for one place, each with the expected outcome."""
    nodes = int(file.attrs["num_nodes"])
    last = name.rpartition("/")[2]
    if array.dtype.kind == "f":
        odd = [(value, REFUSE) for value in (math.nan, math.inf, -math.inf)]
        return [*odd, (float(array[place]) + 1, other), (-1e30, other)]
    least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
    wild = [(value, REFUSE) for value in (least, most) if value != array[place]]
    if array.dtype == np.uint8:
        return [(2, REFUSE), (255, REFUSE), (1 - int(array[place]), other)]
    if any(word in last for word in _OFFSETS):  # these rise from 0 to the end; other offsets may rise as well
        return [*wild, (-1, REFUSE), *((int(array[place]) + step, REFUSE) for step in _not_rising(array, place))]
    if last == "y":
        inside = (int(array[place]) + 1) % int(file.attrs["num_classes"])
        return [*wild, (-2, REFUSE), (int(file.attrs["num_classes"]), REFUSE), (inside, other)]
    if last == "original_ids":
        same = int(array[(place[0] + 1) % array.size])
        return [*wild, (-1, REFUSE), (nodes, REFUSE), (same, REFUSE)]
    if last == "x_indices":
        return [*wild, (-1, REFUSE), (int(file.attrs["num_features"]), REFUSE), (0, other)]
    if last.endswith("edges") and name.startswith("plan"):
        return [*wild[1:], (int(file.attrs["num_edges"]), REFUSE), (0, other)]
    if name.startswith("edges/") or last.endswith("indices"):
        return [*wild, (-1, REFUSE), (nodes, REFUSE), (int(array[place]) + 1 if array[place] + 1 < nodes else 0, other)]
    return [*wild, (-1, REFUSE), (int(array[place]) + 1, other)]  # peers, and counts of rows


def _not_rising(array: np.ndarray, place: tuple[int, ...]) -> list[int]:
    """Changes after which a list of offsets no longer rises, or has another end."""
    column = array[:, place[1]] if array.ndim == 2 else array
    at, steps = place[0], [10**6, 2**40]
    if at == 0 or at + 1 == column.size:
        steps += [1, 3]
    return [*steps, -(10**6)]


def _swap(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    array = file[name][()]
    if len(array) < 2:
        return None
    first, second = sorted(int(place) for place in rng.choice(len(array), 2, replace=False))
    if np.array_equal(array[first], array[second]):
        return None
    file[name][first], file[name][second] = array[second], array[first]
    is_rising = any(word in name for word in ("/indptr", "x_indptr", "node_offsets"))
    return Mutation(f"{name}: rows {first} and {second} swapped", REFUSE if is_rising else other, name)


def _duplicate(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    array = file[name][()]
    if len(array) < 2:
        return None
    first, second = (int(place) for place in rng.choice(len(array), 2, replace=False))
    if np.array_equal(array[first], array[second]):
        return None
    file[name][first] = array[second]
    return Mutation(f"{name}: row {second} copied to {first}", REFUSE if name.endswith("original_ids") else other, name)


_FIRST_WITH_X_DTYPE = 3  # earlier versions have float32 features, whatever the attribute says


def _attribute(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    key = str(pick(rng, sorted(file.attrs)))
    before = file.attrs[key]
    is_read = key != "x_dtype" or int(file.attrs["version"]) >= _FIRST_WITH_X_DTYPE
    if rng.integers(4) == 0:
        del file.attrs[key]
        expects = SAME if key in ("provenance", "ranks_per_node") or not is_read else other if key in _TOLD else REFUSE
        return Mutation(f"attribute {key} dropped", expects, f"@{key}")
    values: list[Any] = [
        "text",
        2.5,
        math.nan,
        [1, 2, 3],
        -1,
        10**15,
        2**62,
        1,
        0,
        b"\xff",
        h5py.Empty("f"),
        [before] * 2,
        "x" * 60_000,
    ]
    value = pick(rng, values)
    if isinstance(value, type(before)) and value == before:
        return None
    try:
        file.attrs[key] = value
    except (TypeError, ValueError, OSError):
        return None
    return Mutation(
        f"attribute {key} = {str(value)[:20]!r}, was {str(before)[:20]!r}",
        _of_attribute(key, value, before, other) if is_read else SAME,
        f"@{key}",
    )


def _of_attribute(key: str, value: Any, before: Any, other: str) -> str:
    if key in _TOLD and (
        isinstance(value, type(before)) or (isinstance(value, int) and isinstance(before, np.integer))
    ):
        return other
    if key in ("directed",) and value in (0, 1):
        return other  # text for people, which is not interpreted
    if key == "provenance" or "checksum" in key:
        return SAME  # or refused
    if key in ("uuid", "parts_uuid") and isinstance(value, str):
        return FREE
    if key in ("weighted", "has_masks") and value in (0, 1):
        return SAME if bool(value) == bool(before) else REFUSE
    if isinstance(value, int) and isinstance(before, np.integer) and value == before:
        return SAME
    if key == "x_nnz" and isinstance(value, int) and value < 0 and int(before) < 0:
        return SAME
    return REFUSE


def _replace(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation:
    """Put another object under the name of a dataset."""
    how = str(pick(rng, ("a group", "a dangling link", "a link to another file", "a link to itself", "a named type")))
    del file[name]
    if how == "a group":
        file.create_group(name)
    elif how == "a dangling link":
        file[name] = h5py.SoftLink("/nowhere")
    elif how == "a link to another file":
        file[name] = h5py.ExternalLink("other.h5", "/x")
    elif how == "a link to itself":
        file[name] = h5py.SoftLink(f"/{name}")
    else:
        file[name] = np.dtype(np.int64)
    return Mutation(f"{name} is {how}", REFUSE, name)


def _huge(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation:
    """Claim far more rows than the file has bytes: HDF5 allocates nothing for them, and reads zeros."""
    shape, dtype = file[name].shape, file[name].dtype
    rows = int(pick(rng, (10**9, 10**12, 10**15)))
    del file[name]
    file.create_dataset(name, (rows, *shape[1:]), dtype, chunks=(1024, *shape[1:]) if rng.integers(2) else None)
    if rng.integers(2):  # the attribute agrees with the claim
        counts = {
            "indptr": "num_nodes",
            "indices": "num_edges",
            "weight": "num_edges",
            "x_data": "x_nnz",
            "x_indices": "x_nnz",
        }
        key = counts.get(name.rpartition("/")[2], "num_nodes")
        file.attrs[key] = rows - (key == "num_nodes" and name.endswith("indptr"))
    return Mutation(f"{name} is said to have {rows} rows", REFUSE, name)


def _chunked(file: h5py.File, name: str, rng: np.random.Generator, other: str) -> Mutation | None:
    """Store the same values in compressed chunks: a valid dataset, but without a single place in the file."""
    array = file[name][()]
    if not array.size or not array.ndim:
        return None
    _again(file, name, array, chunks=True, compression="gzip")
    return Mutation(f"{name} in compressed chunks", SAME, name)
