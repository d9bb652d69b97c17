"""ogbn-mag, whose nodes have types, from its raw files, in bounded memory.

They are gzipped csv tables, which are read once into files without names (:class:`Table`):

num-node-dict.csv.gz                  a line of names of types, a line of numbers of nodes
triplet-type-list.csv.gz              a line head,relation,tail for each type of edges
relations/HEAD___RELATION___TAIL/     edge.csv.gz: a line source,destination for each edge; [edge_reltype.csv.gz]: OGB's number of
                                      the type, on each line
[node-feat/TYPE/node-feat.csv.gz]     a row for each node
[node-label/TYPE/node-label.csv.gz]   a class for each node
[../split/SPLIT/TYPE/]                train.csv.gz, valid.csv.gz, test.csv.gz: numbers of nodes

Types of nodes are in the order of their names; types of edges are in the order of OGB's numbers, so that they keep these.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import Source, reading
from hpcgnn.sources.loaders import warnings_off
from hpcgnn.sources.slabs import SlabArray, Spool, check_file
from hpcgnn.sources.text import open_text
from hpcgnn.sources.typed_nodes import Get, typed_source

TRIPLETS = "triplet-type-list.csv.gz"
_PIECE_VALUES = 1 << 21
_SPLITS = {"train_idx": "train", "val_idx": "valid", "test_idx": "test"}


class Table(SlabArray):
    """A gzipped csv table of numbers, of which slabs of rows are read. paired: it has two columns, and is taken as (2, n)."""

    def __init__(self, path: Path, dtype: type, folder: Path, *, paired: bool = False) -> None:
        self._spool, self._width = Spool(folder, dtype), 2 if paired else 0
        for piece in _pieces(path, dtype):
            self._width = self._width or piece.shape[1]
            if piece.shape[1] != self._width:
                raise HpcgnnError(f"{path} has lines of {piece.shape[1]} numbers, but it should have {self._width}")
            self._spool.append(piece.reshape(-1))
        rows = self._spool.size // max(self._width, 1)
        super().__init__(str(path), (2, rows) if paired else (rows, self._width), self._spool.dtype, [])

    def rows(self, first: int, last: int) -> np.ndarray:
        return self._spool.read(first * self._width, last * self._width).reshape(-1, self._width)

    def columns(self, first: int, last: int) -> list[np.ndarray]:
        return [*self.rows(first, last).T]


def _pieces(path: Path, dtype: type) -> Iterator[np.ndarray]:
    """(n, columns) numbers of a gzipped csv table, some lines at a time."""
    check_file(path)
    with reading(path, "a csv table of numbers"), open_text(path) as file, warnings_off():
        lines = 1
        while lines:
            piece: np.ndarray = np.loadtxt(file, dtype, delimiter=",", ndmin=2, max_rows=lines)
            if lines := max(_PIECE_VALUES // piece.shape[1], 1) if piece.size else 0:
                yield piece


def _words(path: Path) -> list[list[str]]:
    check_file(path)
    with reading(path, "a csv table"), open_text(path) as file:
        return [row for row in csv.reader(file) if row]


def open_tables(where: str, base: Path, folder: Path, *, inverse: bool) -> Source:
    """Open a data set of csv tables. where: its name in errors. base: its own folder, with the folder ``raw``. folder: for
    temporary files. inverse: as of :func:`hpcgnn.sources.typed_nodes.typed_source`."""
    raw, counted = base / "raw", base / "raw" / "num-node-dict.csv.gz"
    table = _words(counted)
    if len(table) != 2 or len(table[0]) != len(table[1]) or not all(word.isdecimal() for word in table[1]):
        raise HpcgnnError(f"{counted} should have a line of names of types, and a line of their numbers of nodes")
    triplets = _words(raw / TRIPLETS)
    if wrong := [row for row in triplets if len(row) != 3]:
        raise HpcgnnError(f"{raw / TRIPLETS} has the line {','.join(wrong[0])!r}, but it should be head,relation,tail")
    keys = sorted((row[0], row[1], row[2]) for row in triplets)
    folders = {key: raw / "relations" / "___".join(key) for key in keys}
    numbers = {key: _number(there / "edge_reltype.csv.gz") for key, there in folders.items()}
    nodes = {name: _of_nodes(base, name, int(count), folder) for name, count in sorted(zip(*table, strict=True))}
    return typed_source(
        where, nodes, {key: _of_edges(folders[key], folder) for key in sorted(keys, key=numbers.__getitem__)},
        inverse=inverse,
    )  # fmt: skip


def _of_nodes(base: Path, name: str, count: int, folder: Path) -> Get:
    paths = {"x": base / "raw" / "node-feat" / name / "node-feat.csv.gz",
             "y": base / "raw" / "node-label" / name / "node-label.csv.gz"}  # fmt: skip
    for split in sorted(path for path in base.glob("split/*") if path.is_dir())[:1]:
        paths |= {mask: split / name / f"{own}.csv.gz" for mask, own in _SPLITS.items()}

    def get(key: str) -> np.ndarray | SlabArray | None:
        if key == "num_nodes":
            return np.array(count)
        path = paths.get(key)
        if path is None or not path.exists():
            return None
        if key == "x":
            return Table(path, np.float32, folder)
        return np.concatenate([*_pieces(path, np.int64), np.empty((0, 1), np.int64)]).reshape(-1)

    return get


def _of_edges(there: Path, folder: Path) -> Get:
    def get(key: str) -> SlabArray | None:
        return Table(there / "edge.csv.gz", np.int64, folder, paired=True) if key == "edge_index" else None

    return get


def _number(path: Path) -> int:
    """OGB's number of a type of edges, which its table repeats for each edge; -1 without a table."""
    found = {int(number) for piece in _pieces(path, np.int64) for number in np.unique(piece)} if path.exists() else {-1}
    if len(found) != 1:
        raise HpcgnnError(f"{path} has {len(found)} numbers of types, but the edges of a folder have one type")
    return found.pop()
