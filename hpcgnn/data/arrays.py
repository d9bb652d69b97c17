"""Checks of whole arrays that come from outside: shape, dtype and meaning of features, labels and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from hpcgnn.data.graph_file import MULTI_LABEL, NO_TASK, SINGLE_LABEL
from hpcgnn.errors import HpcgnnError


def feature_array(x: Any, num_nodes: int, where: str) -> Any:
    """``x`` as (N, F) float32, an array, or a ``csr_matrix`` with sorted columns, each once."""
    if sp.issparse(x):
        x = sp.csr_matrix(x, dtype=np.float32)
        x.sum_duplicates()
    else:
        x = np.asarray(x)
        if x.dtype.kind not in "biuf":
            raise HpcgnnError(f"{where}: x has dtype {x.dtype}, it should be numbers")
    if x.ndim != 2 or x.shape[0] != num_nodes:
        raise HpcgnnError(f"{where}: x has shape {x.shape}, it should be ({num_nodes}, F), a row for each node")
    return x if sp.issparse(x) else x.astype(np.float32, copy=False)


def sparse_features(data: Any, indices: Any, indptr: Any, shape: Any, where: str) -> sp.csr_matrix:
    """CSR parts as a matrix, after the checks that scipy leaves out: a wrong index there is a crash, not an error."""
    rows, columns = (int(size) for size in shape)
    data, indices, indptr = np.asarray(data), np.asarray(indices), np.asarray(indptr)
    problem = None
    if data.ndim != 1 or indices.shape != data.shape or indptr.shape != (rows + 1,):
        problem = f"x_data, x_indices, x_indptr have shapes {data.shape}, {indices.shape}, {indptr.shape}"
    elif indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu" or data.dtype.kind not in "biuf":
        problem = f"x_data, x_indices, x_indptr have dtypes {data.dtype}, {indices.dtype}, {indptr.dtype}"
    elif indptr[0] != 0 or indptr[-1] != data.size or (np.diff(indptr.astype(np.int64)) < 0).any():
        problem = f"x_indptr does not rise from 0 to {data.size}"
    elif indices.size and (indices.min() < 0 or indices.max() >= columns):
        problem = f"x_indices run from {indices.min()} to {indices.max()}, outside of 0 to {columns - 1}"
    if problem:
        raise HpcgnnError(f"{where}: {problem}, which is no CSR matrix of shape ({rows}, {columns})")
    return sp.csr_matrix((data.astype(np.float32), indices, indptr), shape=(rows, columns))


def label_array(y: Any, num_nodes: int, where: str) -> tuple[np.ndarray | None, str, int]:
    """``(y, task, classes)``: y as (N,) int64 with -1 for none, or (N, C) uint8.

    A single column counts as (N,). NaN means no label where classes are given as floats.
    """
    if y is None:
        return None, NO_TASK, 0
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.shape[0] != num_nodes or y.dtype.kind not in "biuf":
        raise HpcgnnError(
            f"{where}: y is {y.dtype} of shape {y.shape}, it should be numbers of shape ({num_nodes},) or ({num_nodes}, C)"
        )
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1 if y.ndim == 1 else 0, y)
    if (y != np.trunc(y)).any():
        raise HpcgnnError(f"{where}: y holds {y[y != np.trunc(y)][0]}: labels should be whole numbers")
    if y.ndim == 1:
        y = y.astype(np.int64)
        return y, SINGLE_LABEL, int(y.max(initial=-1)) + 1
    if not ((y == 0) | (y == 1)).all():
        raise HpcgnnError(f"{where}: y has {y.shape[1]} columns, so that all values should be 0 or 1")
    return y.astype(np.uint8), MULTI_LABEL, y.shape[1]


def mask_array(mask: Any, name: str, num_nodes: int, where: str) -> np.ndarray:
    """``mask`` as (N,) bool; a missing one selects nothing."""
    if mask is None:
        return np.zeros(num_nodes, np.bool_)
    mask = np.asarray(mask)
    if mask.shape != (num_nodes,) or not (mask.dtype == np.bool_ or np.isin(mask, (0, 1)).all()):
        raise HpcgnnError(
            f"{where}: {name} is {mask.dtype} of shape {mask.shape}, it should be bool of shape ({num_nodes},)"
        )
    return mask.astype(np.bool_)


def labelled(y: np.ndarray) -> np.ndarray:
    """(n,) bool: which nodes have a label."""
    return y >= 0 if y.ndim == 1 else np.any(y, axis=1)
