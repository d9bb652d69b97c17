"""``npz:FILE``: a graph as plain numpy arrays.

num_nodes () int    edge_index (2, E) int    [edge_weight (E,)]
x (N, F)  or  x_data (nnz,), x_indices (nnz,), x_indptr (N+1,), x_shape (2,)
y (N,) class, -1 = none, or (N, C) 0/1
train_mask, val_mask, test_mask (N,) bool, and train_masks.. (K, N) bool for K splits (``?split=K`` picks one)

Arrays with other names are not read. ``?nodes=N`` confirms the number of nodes of a graph that has only edges, and most of whose
nodes have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.data.arrays import sparse_features
from hpcgnn.data.graph_file import MASKS
from hpcgnn.data.sources.archive import Archive
from hpcgnn.data.sources.base import ArraySource, agreed_nodes, existing_file
from hpcgnn.data.sources.spec import Spec
from hpcgnn.errors import HpcgnnError

_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


def open_npz(spec: Spec, folder: Path) -> ArraySource:
    """See the module's text."""
    path = existing_file(spec.name, "npz")
    split, nodes = spec.take_int("split", -1, least=-1), spec.take_int("nodes", 0)
    with Archive(path) as arrays:
        return _from_arrays(arrays, str(path), split, nodes)


def _from_arrays(arrays: Archive, where: str, split: int, nodes: int) -> ArraySource:
    count, edge_index = arrays.read("num_nodes"), arrays.read("edge_index")
    for name, array in (("num_nodes", count), ("edge_index", edge_index)):
        if array is None:
            raise HpcgnnError(f"{where} has no array {name!r}; it has {', '.join(arrays.names) or 'none'}")
    assert count is not None
    if count.size != 1 or count.dtype.kind not in "iu":
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    num_nodes = int(count.reshape(-1)[0])
    x = _sparse(arrays, where) if set(_SPARSE) & set(arrays.names) else arrays.read("x")
    y, masks = arrays.read("y"), _masks(arrays, where, split)
    source = ArraySource(where, num_nodes, edge_index, weight=arrays.read("edge_weight"), x=x, y=y, masks=masks)
    is_counted = x is None and y is None and not masks  # no array has a row for each node
    agreed_nodes(where, num_nodes, source.info.num_edges if is_counted else None, nodes)
    return source


def _sparse(arrays: Archive, where: str) -> Any:
    data, indices, indptr, shape = (arrays.read(name) for name in _SPARSE)
    if any(part is None for part in (data, indices, indptr, shape)):
        raise HpcgnnError(f"{where}: sparse features need x_data, x_indices, x_indptr and x_shape (two numbers)")
    return sparse_features(data, indices, indptr, shape, where)


def _masks(arrays: Archive, where: str, split: int) -> dict[str, np.ndarray]:
    """The masks of split number ``split``; with -1 the masks (N,), or else the first of several splits."""
    plain = _read_all(arrays, {name: name for name in MASKS})
    if split < 0 and plain:
        return plain
    several = _read_all(arrays, {name: f"{name}s" for name in MASKS})
    if not several:
        if split > 0:
            raise HpcgnnError(f"{where}: split={split} was given, but there is no train_masks array")
        return plain
    for name, masks in several.items():
        if masks.ndim != 2:
            raise HpcgnnError(f"{where}: {name}s has shape {masks.shape}, but it should be (splits, nodes)")
    count = min(masks.shape[0] for masks in several.values())
    if max(split, 0) >= count:
        raise HpcgnnError(f"{where}: split={max(split, 0)} was given, but there are {count}, counted from 0")
    return {name: masks[max(split, 0)] for name, masks in several.items()}


def _read_all(arrays: Archive, stored: dict[str, str]) -> dict[str, np.ndarray]:
    found = {name: arrays.read(under) for name, under in stored.items()}
    return {name: array for name, array in found.items() if array is not None}
