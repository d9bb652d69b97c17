"""Checks of whole arrays of a source: shape, dtype and meaning of features, labels and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import MULTI_LABEL, NO_TASK, SINGLE_LABEL

# A model has a row of weights for each column, so the number of columns must fit the values, and not only be claimed.
_COLUMNS_PER_VALUE, _ALWAYS_COLUMNS = 8, 1 << 16
_EXACT = 2.0**53  # whole numbers up to here are exact in float64


def as_float32(values: np.ndarray) -> np.ndarray:
    """``values`` as float32; values that are too large become infinite, which later checks refuse."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def feature_array(x: Any, num_nodes: int, where: str) -> Any:
    """``x`` as a dense (N, F) array, float16 if it was that and else float32, or as a ``csr_matrix`` of float32 with sorted
    columns. Raises HpcgnnError where it has another shape, or no numbers."""
    if sp.issparse(x):
        x = sp.csr_matrix(x, dtype=np.float32)
        x.sum_duplicates()
    else:
        x = np.asarray(x)
        if x.dtype.kind not in "biuf":
            raise HpcgnnError(f"{where}: x has dtype {x.dtype}, but it should be numbers")
    if x.ndim != 2 or x.shape[0] != num_nodes:
        raise HpcgnnError(f"{where}: x has shape {x.shape}, but it should be ({num_nodes}, F), a row for each node")
    return x if sp.issparse(x) or x.dtype == np.float16 else as_float32(x)


def sparse_features(data: Any, indices: Any, indptr: Any, shape: Any, where: str) -> sp.csr_matrix:
    """A CSR matrix from its arrays, after checks that SciPy leaves out: a wrong index would crash its compiled code."""
    rows, columns = _two_sizes(shape, where)
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
    if columns > max(_ALWAYS_COLUMNS, _COLUMNS_PER_VALUE * data.size):
        raise HpcgnnError(
            f"{where}: x_shape has {columns:,} columns for {data.size:,} values, of which the largest is in column "
            f"{indices.max() if indices.size else -1}: leave out the empty columns"
        )
    return sp.csr_matrix((as_float32(data), indices, indptr), shape=(rows, columns))


def _two_sizes(shape: Any, where: str) -> tuple[int, int]:
    sizes = np.asarray(shape)
    if sizes.size != 2 or sizes.dtype.kind not in "iu" or sizes.min() < 0:
        raise HpcgnnError(
            f"{where}: x_shape is {sizes.dtype} of shape {sizes.shape}, but it should be two whole numbers"
        )
    rows, columns = sizes.reshape(-1).tolist()
    return rows, columns


def label_array(y: Any, num_nodes: int, where: str) -> tuple[np.ndarray | None, str, int]:
    """``(y, task, classes)``: y as (N,) int64 with -1 for nodes without a label, or (N, C) uint8.

    A single column is taken as (N,). In floating-point classes, NaN means no label. In (N, C), so does a row of NaN, which
    becomes 0; other rows with NaN are refused, because 0 would say that the node is not in the class.
    """
    if y is None:
        return None, NO_TASK, 0
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.shape[0] != num_nodes or y.dtype.kind not in "biuf":
        raise HpcgnnError(
            f"{where}: y is {y.dtype} of shape {y.shape}, but it should be numbers of shape ({num_nodes},) or ({num_nodes}, C)"
        )
    if y.dtype.kind == "f":
        if y.ndim == 2:
            _check_unknown(y, where)
        y = np.where(np.isnan(y), -1 if y.ndim == 1 else 0, y)
        is_whole = (y == np.trunc(y)) & (np.abs(y) < _EXACT)
        if not is_whole.all():
            raise HpcgnnError(f"{where}: y holds {y[~is_whole][0]}: labels should be whole numbers")
    if y.ndim == 1:
        return _classes(y, where)
    is_label = (y == 0) | (y == 1)
    if not is_label.all() or not y.shape[1]:
        row, column = np.argwhere(~is_label)[0] if y.size else (0, 0)
        found = f", but that of node {row} is {y[row, column]} in column {column}" if y.size else ""
        raise HpcgnnError(f"{where}: y has {y.shape[1]} columns, so that all values should be 0 or 1{found}")
    return y.astype(np.uint8), MULTI_LABEL, y.shape[1]


def rows_unknown(y: Any) -> np.ndarray | None:
    """(N,) bool: the nodes whose row of (N, C) labels is NaN; None for labels of another shape or type."""
    y = np.asarray(y)
    return np.isnan(y).all(axis=1) if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind == "f" else None


def one_hot_note(y: np.ndarray | None) -> list[str]:
    """A note if each row of (N, C) labels has a single 1: these may be classes, which are trained in another way."""
    if y is None or y.ndim == 1 or y.shape[1] < 2 or not (y.sum(axis=1) == 1).all():
        return []
    return [
        "each row of y has a single 1, and is taken as independent labels: give y.argmax(1) if it is one class a node"
    ]


def _check_unknown(y: np.ndarray, where: str) -> None:
    """Refuse rows of which only a part is NaN."""
    unknown = np.isnan(y)
    unknown[unknown.all(axis=1)] = False
    if unknown.any():
        row, column = np.argwhere(unknown)[0]
        raise HpcgnnError(
            f"{where}: y has {int(unknown.sum()):,} unknown entries (NaN) beside known ones, the first for node {row} in column "
            f"{column}: fill in 0 or 1, or make the whole row NaN, which means a node without labels"
        )


def _classes(y: np.ndarray, where: str) -> tuple[np.ndarray, str, int]:
    """The result of :func:`label_array` for one class a node. Memory grows with the number of classes, so it is checked."""
    classes = max(int(y.max()) + 1, 0) if y.size else 0
    if classes > y.size:
        raise HpcgnnError(
            f"{where}: y of node {int(y.argmax())} is {classes - 1}, but there are only {y.size:,} nodes: number the classes "
            "from 0 without gaps"
        )
    return y.astype(np.int64), SINGLE_LABEL, classes


def mask_array(mask: Any, name: str, num_nodes: int, where: str) -> np.ndarray:
    """``mask`` as (N,) bool; None selects no node."""
    if mask is None:
        return np.zeros(num_nodes, np.bool_)
    mask = np.asarray(mask)
    is_number = mask.shape == (num_nodes,) and mask.dtype.kind in "biuf"
    if not is_number or not (mask.dtype == np.bool_ or np.isin(mask, (0, 1)).all()):
        raise HpcgnnError(
            f"{where}: {name} is {mask.dtype} of shape {mask.shape}, but it should be bool of shape ({num_nodes},)"
        )
    return mask.astype(np.bool_)


def labelled(y: np.ndarray) -> np.ndarray:
    """(n,) bool: whether each node has a label."""
    return y >= 0 if y.ndim == 1 else np.any(y, axis=1)
