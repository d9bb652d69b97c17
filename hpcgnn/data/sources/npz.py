"""``npz:FILE``: a graph as plain numpy arrays.

num_nodes () int    edge_index (2, E) int    [edge_weight (E,)]
x (N, F)  or  x_data (nnz,), x_indices (nnz,), x_indptr (N+1,), x_shape (2,)
y (N,) class, -1 = none, or (N, C) 0/1
train_mask, val_mask, test_mask (N,) bool, and train_masks.. (K, N) bool for K splits (``?split=K`` picks one)
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from hpcgnn.data.arrays import sparse_features
from hpcgnn.data.graph_file import MASKS
from hpcgnn.data.sources.base import ArraySource, existing_file, reading
from hpcgnn.data.sources.spec import Spec
from hpcgnn.errors import HpcgnnError


def open_npz(spec: Spec, folder: Path) -> ArraySource:
    """See the module's text."""
    path = existing_file(spec.name, "npz")
    split = spec.take_int("split", -1, least=-1)
    try:
        with reading(path, "npz"), np.load(path, allow_pickle=False) as arrays:
            return _from_arrays(dict(arrays), str(path), split)
    except zipfile.BadZipFile as error:
        raise HpcgnnError(f"{path} cannot be read as npz: {error}") from error


def _from_arrays(arrays: dict[str, np.ndarray], where: str, split: int) -> ArraySource:
    for name in ("num_nodes", "edge_index"):
        if name not in arrays:
            raise HpcgnnError(f"{where} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}")
    if arrays["num_nodes"].size != 1 or arrays["num_nodes"].dtype.kind not in "iu":
        raise HpcgnnError(f"{where}: num_nodes should be one whole number")
    num_nodes = int(arrays["num_nodes"].reshape(-1)[0])
    x = arrays.get("x")
    if "x_data" in arrays:
        parts = [arrays[name] for name in ("x_data", "x_indices", "x_indptr", "x_shape") if name in arrays]
        if len(parts) != 4 or parts[3].size != 2:
            raise HpcgnnError(f"{where}: sparse features need x_data, x_indices, x_indptr and x_shape (two numbers)")
        data, indices, indptr, shape = parts
        x = sparse_features(data, indices, indptr, shape, where)
    weight, y = arrays.get("edge_weight"), arrays.get("y")
    return ArraySource(
        where, num_nodes, arrays["edge_index"], weight=weight, x=x, y=y, masks=_masks(arrays, where, split)
    )


def _masks(arrays: dict[str, np.ndarray], where: str, split: int) -> dict[str, np.ndarray]:
    """The masks of the wanted split; -1 takes the plain ones, or the first of several."""
    plain = {name: arrays[name] for name in MASKS if name in arrays}
    several = {name: arrays[f"{name}s"] for name in MASKS if f"{name}s" in arrays}
    if split < 0 and plain:
        return plain
    if not several:
        if split > 0:
            raise HpcgnnError(f"{where}: split={split} is asked for, but there is no train_masks array")
        return plain
    count = min(masks.shape[0] for masks in several.values())
    if split >= count:
        raise HpcgnnError(f"{where}: split={split} is asked for, but there are {count}, counted from 0")
    return {name: masks[max(split, 0)] for name, masks in several.items()}
