"""``npz:FILE``: a graph as plain numpy arrays.

num_nodes () int    edge_index (2, E) int    [edge_weight (E,)]    [edge_type (E,) int from 0]    [edge_attr (E, D)]
[edge_split (E,) int: links for 0 training, 1 validation, 2 test; 3 is the reverse of a link of 1 or 2]
[link_source, link_target, link_set (M,), link_type (M,) int, link_source_candidates, link_target_candidates (M, K): held-out
links whose ends are ranked among candidates of their own]
x (N, F)  or  x_data (nnz,), x_indices (nnz,), x_indptr (N+1,), x_shape (2,)
y (N,) class, -1 = none, or (N, C) 0/1, or (N,) or (N, K) real targets of regression, NaN = none
train_mask, val_mask, test_mask (N,) bool, or other forms of :mod:`hpcgnn.sources.node_values`; ``?split=K`` picks a split

A graph whose nodes have types has these arrays for each type, by the names in PyG's ``HeteroData``:
TYPE/num_nodes or TYPE/x    [TYPE/y]    [TYPE/train_mask] ...
SOURCE__RELATION__DESTINATION/edge_index, ids from 0 in each type    [.../edge_attr]    [.../edge_weight]

Arrays with other names are not read, and a note names them. ``?nodes=N`` confirms the number of nodes of a graph that has only
edges, and most of whose nodes have none.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.h5 import ZIP, begins_with
from hpcgnn.data.schema import LINK_VALUES
from hpcgnn.sources.base import SOURCES, ArraySource, Source, Spec, agreed_nodes, existing_file
from hpcgnn.sources.node_values import read_masks, sparse_features
from hpcgnn.sources.slabs import HEADERS, one_line
from hpcgnn.sources.typed_nodes import typed_source

_MOST_DEFLATED = 1032  # the largest ratio of sizes that deflate can reach
_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


class _Archive:
    """An open ``.npz`` file, a zip archive of ``.npy`` members, which are read when they are asked for. Nothing is ever
    unpickled. The sizes in the headers of both must fit into the file before memory is allocated. All methods raise HpcgnnError,
    which names the file and the array, if one is damaged. unread: the names of the arrays that nobody has asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # on a damaged file, zipfile raises errors of many types
            if isinstance(error, zipfile.BadZipFile) and not begins_with(path, ZIP):
                raise HpcgnnError(f"{path} is not an npz file: write it with numpy.savez") from error
            raise HpcgnnError(f"{path} cannot be read as npz: {one_line(error)}") from error
        self._members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}
        self._file_bytes = path.stat().st_size
        self.names = sorted(self._members)
        self.unread = set(self._members)

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> np.ndarray | None:
        """Array ``name``, with its checksum compared, or None if the file has no such array."""
        if name not in self._members:
            return None
        self.unread.discard(name)
        try:
            self._check_member(self._members[name])
            with self._zip.open(self._members[name]) as file:
                self._check_header(file, self._members[name])
            with self._zip.open(self._members[name]) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):
                    raise ValueError("it has more bytes than its header says")
                return array
        except Exception as error:  # as above, and errors of zlib, numpy and its parser of headers
            raise HpcgnnError(f"{self._path} cannot be read as npz: array {name}: {one_line(error)}") from error

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        most = _MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else 1
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed by another method than numpy's")
        if not 0 <= info.file_size <= most * info.compress_size or info.compress_size > self._file_bytes:
            raise ValueError(f"its directory claims {info.file_size:,} bytes, but the file has {self._file_bytes:,}")

    def _check_header(self, file: IO[bytes], info: zipfile.ZipInfo) -> None:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"its format {version} is none that holds numbers")
        shape, _, dtype = HEADERS[version](file)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {shape}")
        values = math.prod(shape) * dtype.itemsize
        if values + file.tell() != info.file_size and not dtype.hasobject:  # numpy refuses objects in its own words
            raise ValueError(
                f"{dtype} of shape {shape} take {values:,} bytes, but there are {info.file_size - file.tell():,}"
            )


@SOURCES.register("npz")
def _open_npz(spec: Spec, folder: Path) -> Source:
    path = existing_file(spec.name, "npz")
    split, nodes = spec.take_split(), spec.take_int("nodes", 0)
    with _Archive(path) as arrays:
        if "edge_index" not in arrays.names and any(name.endswith("/edge_index") for name in arrays.names):
            return _with_types(arrays, str(path), split)
        return _from_arrays(arrays, str(path), split, nodes)


def _with_types(arrays: _Archive, where: str, split: int | None) -> ArraySource:
    """The source of a graph whose nodes have types."""
    groups = dict.fromkeys(name.rpartition("/")[0] for name in arrays.names if "/" in name)
    keys = {group: tuple(group.split("__")) for group in groups if f"{group}/edge_index" in arrays.names}
    if wrong := [group for group, key in keys.items() if len(key) != 3]:
        raise HpcgnnError(f"{where}: {wrong[0]}/edge_index should be named SOURCE__RELATION__DESTINATION/edge_index")
    readers = {group: lambda name, group=group: arrays.read(f"{group}/{name}") for group in groups}
    nodes = {group: readers[group] for group in groups if group not in keys}
    return typed_source(where, nodes, {(*key,): readers[group] for group, key in keys.items()}, split)  # type: ignore[misc]


def _from_arrays(arrays: _Archive, where: str, split: int | None, nodes: int) -> ArraySource:
    count, edge_index = arrays.read("num_nodes"), arrays.read("edge_index")
    for name, array in (("num_nodes", count), ("edge_index", edge_index)):
        if array is None:
            raise HpcgnnError(f"{where} has no array {name!r}; it has {', '.join(arrays.names) or 'none'}")
    assert count is not None
    if count.size != 1 or count.dtype.kind not in "iu":
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    num_nodes = int(count.reshape(-1)[0])
    x: Any
    if set(_SPARSE) & set(arrays.names):
        data, indices, indptr, shape = (arrays.read(name) for name in _SPARSE)
        if data is None or indices is None or indptr is None or shape is None:
            raise HpcgnnError(f"{where}: sparse features need x_data, x_indices, x_indptr and x_shape (two numbers)")
        x = sparse_features(data, indices, indptr, shape, where)
    else:
        x = arrays.read("x")
    y = arrays.read("y")
    edges = {name: arrays.read(f"edge_{name}") for name in ("weight", "type", "attr", "split")}
    columns = {name: arrays.read(name.replace("links/", "link_")) for name in LINK_VALUES}
    asked = {name: column for name, column in columns.items() if column is not None}
    masks, notes = read_masks(arrays.read, num_nodes, split, where)
    if arrays.unread:
        notes.append(f"arrays that are not read: {', '.join(sorted(arrays.unread))}")
    source = ArraySource(
        where, num_nodes, edge_index, weight=edges["weight"], edge_type=edges["type"], edge_attr=edges["attr"],
        edge_split=edges["split"], x=x, y=y, masks=masks, notes=notes, asked=[asked] if asked else (),
    )  # fmt: skip
    is_counted = x is None and y is None and not masks  # no array has a row for each node
    agreed_nodes(where, num_nodes, source.info.num_edges if is_counted else None, nodes)
    return source
