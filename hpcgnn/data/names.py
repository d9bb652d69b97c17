"""Names of nodes, types of edges and classes in ``graph.h5`` and ``parts.h5``, for sources that have names in place of numbers.

A list of names is stored as two arrays: all names as UTF-8, one after another, and the offsets at which they begin. They are
optional: nothing but people and their questions needs them, so that neither the version of the file nor its checksums know them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.base.arguments import check_path
from hpcgnn.base.errors import WrongTypeError, WrongValueError, quoted
from hpcgnn.data import h5
from hpcgnn.data.graph_file import SlabReader, reader_of
from hpcgnn.data.schema import WHOLE, Rule
from hpcgnn.data.stored import StoredArray

NODES, EDGE_TYPES, CLASSES = "nodes/names", "edges/type_names", "nodes/class_names"
_KINDS = {"nodes": NODES, "edge_types": EDGE_TYPES, "classes": CLASSES}
_OFFSETS = "_indptr"
_NAMES_AT_A_TIME = 1 << 16

Names = Mapping[str, Collection[str]]
"""The names in the order of their numbers, by the dataset that holds them: NODES, EDGE_TYPES or CLASSES."""


def layout(names: Names) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """The shapes and dtypes of the datasets of ``names``."""
    schema: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    for dataset, each in names.items():
        schema[dataset] = (sum(len(name.encode()) for name in each),), np.dtype(np.uint8)
        schema[dataset + _OFFSETS] = (len(each) + 1,), np.dtype(np.int64)
    return schema


def write(writer: h5.SlabWriter, names: Names) -> None:
    """Write ``names`` to the datasets of :func:`layout`, in pieces."""
    for dataset, each in names.items():
        first, end = 0, 0
        writer.write(dataset + _OFFSETS, 0, np.zeros(1, np.int64))
        for piece in _pieces(each):
            content = b"".join(piece)
            ends = end + np.cumsum([len(name) for name in piece])
            writer.write(dataset, end, np.frombuffer(content, np.uint8))
            writer.write(dataset + _OFFSETS, first + 1, ends)
            first, end = first + len(piece), end + len(content)


def schema(file: SlabReader) -> h5.Schema:
    """The shapes and dtypes of the datasets of all names that ``file`` has."""
    arrays = (each for dataset in _KINDS.values() for each in _arrays(file, dataset))
    return {each.name: (each.rule.shape, each.rule.dtype) for each in arrays}


def copy(file: SlabReader, writer: h5.SlabWriter) -> None:
    """Copy all names of ``file`` to the datasets of :func:`schema`, in pieces."""
    for each in (each for dataset in _KINDS.values() for each in _arrays(file, dataset)):
        first = 0
        for piece in each.pieces(0, each.rule.shape[0]):
            rows = piece.view(each.rule.dtype)
            writer.write(each.name, first, rows)
            first += rows.size


def _pieces(names: Collection[str]) -> Iterator[list[bytes]]:
    encoded = (name.encode() for name in names)
    while piece := list(islice(encoded, _NAMES_AT_A_TIME)):
        yield piece


def names(path: str | Path, kind: str = "nodes", numbers: Sequence[int] | np.ndarray | None = None) -> list[str]:
    """Read names from ``graph.h5`` or ``parts.h5``. Not collective: any process may call it.

    Sources of triples with names (text tables, Parquet, RDF) keep the names of what they number, so that node 7 of the graph has
    ``names("graph.h5")[7]``. Predictions are by the same numbers.

    Args:
        path: a file made by ``hpcgnn convert`` or ``hpcgnn partition``.
        kind: ``nodes``, ``edge_types`` or ``classes``.
        numbers: (k,) the numbers of the names to read, in any order; all names by default, in O(names) memory.

    Returns:
        A list of names; an empty one if the file has none of this kind.

    Raises:
        HpcgnnError: for a missing or damaged file, and for numbers that the graph does not have.

    """
    check_path("path", path)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise WrongValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    try:
        wanted = None if numbers is None else np.asarray(numbers).astype(np.int64, casting="same_kind").reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongTypeError(f"numbers must be whole numbers, not {quoted(numbers)}") from error
    with reader_of(path)(path) as file:
        return read(file, _KINDS[kind], wanted)


def _arrays(file: SlabReader, dataset: str) -> tuple[StoredArray, ...]:
    """The array of all names of a kind and that of their offsets; none if the file has no such names."""
    there, meta = h5.child(file.file, dataset), file.meta
    if there is None or file.source is None:
        return ()
    if not isinstance(there, h5py.Dataset) or len(there.shape) != 1:
        raise h5.damaged(file.path, f"{dataset} is not a list")
    count = {NODES: meta.num_nodes, EDGE_TYPES: meta.num_edge_types, CLASSES: meta.num_classes}[dataset]
    size = int(there.shape[0])
    rules = {
        dataset: Rule((size,), np.dtype(np.uint8), WHOLE, high=255),
        dataset + _OFFSETS: Rule((count + 1,), np.dtype(np.int64), WHOLE, high=size, step=0, ends=(0, size)),
    }
    return tuple(StoredArray(file.file, file.source, name, rule) for name, rule in rules.items())


def read(file: SlabReader, dataset: str, numbers: np.ndarray | range | None = None) -> list[str]:
    """The names in ``dataset`` with these numbers, all by default; a range has steps of 1. An empty list if the file has none.
    Raises HpcgnnError."""
    if not (arrays := _arrays(file, dataset)):
        return []
    count = arrays[1].rule.shape[0] - 1
    if numbers is None or isinstance(numbers, range):
        return _between(arrays, *((0, count) if numbers is None else (numbers.start, numbers.stop)))
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise WrongValueError(f"{file.path} has {count:,} names, with the numbers from 0 to {count - 1}")
    return [name for number in numbers.tolist() for name in _between(arrays, number, number + 1)]


def _between(arrays: tuple[StoredArray, ...], first: int, last: int) -> list[str]:
    """The names with the numbers ``[first, last)``, in the memory that they take."""
    content, offsets = arrays
    ends = offsets.read(first, last + 1).tolist()
    text = content.read(ends[0], ends[-1]).tobytes()
    return [text[begin - ends[0] : end - ends[0]].decode(errors="replace") for begin, end in pairwise(ends)]
