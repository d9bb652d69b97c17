"""``npz:FILE``: a graph as plain numpy arrays.

num_nodes () int    edge_index (2, E) int    [edge_weight (E,)]
x (N, F)  or  x_data (nnz,), x_indices (nnz,), x_indptr (N+1,), x_shape (2,)
y (N,) class, -1 = none, or (N, C) 0/1
train_mask, val_mask, test_mask (N,) bool, and train_masks.. (K, N) bool for K splits (``?split=K`` picks one); also the other
forms of :mod:`hpcgnn.sources.masks`

Arrays with other names are not read, and a note names them. ``?nodes=N`` confirms the number of nodes of a graph that has only
edges, and most of whose nodes have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.archive import Archive
from hpcgnn.sources.arrays import sparse_features
from hpcgnn.sources.base import SOURCES, ArraySource, agreed_nodes, existing_file
from hpcgnn.sources.masks import read_masks
from hpcgnn.sources.spec import Spec

_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


@SOURCES.register("npz")
def open_npz(spec: Spec, folder: Path) -> ArraySource:
    """See the module's text."""
    path = existing_file(spec.name, "npz")
    split, nodes = spec.take_split(), spec.take_int("nodes", 0)
    with Archive(path) as arrays:
        return _from_arrays(arrays, str(path), split, nodes)


def _from_arrays(arrays: Archive, where: str, split: int | None, nodes: int) -> ArraySource:
    count, edge_index = arrays.read("num_nodes"), arrays.read("edge_index")
    for name, array in (("num_nodes", count), ("edge_index", edge_index)):
        if array is None:
            raise HpcgnnError(f"{where} has no array {name!r}; it has {', '.join(arrays.names) or 'none'}")
    assert count is not None
    if count.size != 1 or count.dtype.kind not in "iu":
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    num_nodes = int(count.reshape(-1)[0])
    x = _sparse(arrays, where) if set(_SPARSE) & set(arrays.names) else arrays.read("x")
    y, weight = arrays.read("y"), arrays.read("edge_weight")
    masks, notes = read_masks(arrays.read, num_nodes, split, where)
    if arrays.unread:
        notes.append(f"arrays that are not read: {', '.join(arrays.unread)}")
    source = ArraySource(where, num_nodes, edge_index, weight=weight, x=x, y=y, masks=masks, notes=notes)
    is_counted = x is None and y is None and not masks  # no array has a row for each node
    agreed_nodes(where, num_nodes, source.info.num_edges if is_counted else None, nodes)
    return source


def _sparse(arrays: Archive, where: str) -> Any:
    data, indices, indptr, shape = (arrays.read(name) for name in _SPARSE)
    if any(part is None for part in (data, indices, indptr, shape)):
        raise HpcgnnError(f"{where}: sparse features need x_data, x_indices, x_indptr and x_shape (two numbers)")
    return sparse_features(data, indices, indptr, shape, where)
