"""Checks of features, labels and masks: of whole arrays (shape, dtype, meaning), and of values in the pieces that are written.

Masks come in any of the usual forms:

train_mask   (N,) bool or 0 and 1;  (N, splits) as in PyG, or (splits, N);  (k,) node numbers
train_masks  (splits, N) or (N, splits)
train_idx    (k,) node numbers, or (N,) bool;  also train_index, and valid_... or val_... for validation
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import FEW_CLASSES, MASKS, MULTI_LABEL, NO_TASK, REGRESSION, SINGLE_LABEL

# A model has a row of weights for each column, so the number of columns must fit the values, and not only be claimed.
_COLUMNS_PER_VALUE, _ALWAYS_COLUMNS = 8, 1 << 16
Rows: TypeAlias = np.ndarray | sp.csr_matrix


def as_float32(values: np.ndarray) -> np.ndarray:
    """``values`` as float32; values that are too large become infinite, which later checks refuse."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def feature_array(x: Any, num_nodes: int, where: str) -> Any:
    """``x`` as dense (N, F) float16 or float32, or ``csr_matrix`` of float32 with sorted columns. Raises HpcgnnError for other
    shapes and types."""
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
    data, indices, indptr, sizes = map(np.asarray, (data, indices, indptr, shape))
    if sizes.size != 2 or sizes.dtype.kind not in "iu" or sizes.min() < 0:
        raise HpcgnnError(
            f"{where}: x_shape is {sizes.dtype} of shape {sizes.shape}, but it should be two whole numbers"
        )
    rows, columns = sizes.reshape(-1).tolist()
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


_IF_REAL = "if they are targets of regression, say --labels real"


def label_array(
    y: Any, num_nodes: int, where: str, *, are_real: bool = False
) -> tuple[np.ndarray | None, str, int, np.ndarray | None]:
    """``(y, task, classes, unknown)``: y as (N,) int64 with -1 for nodes without a label, or (N, C) uint8; (N, 1) is taken as
    (N,). In floating-point classes, NaN means no label. In (N, C), so does a row of NaN, which becomes 0 and is True in
    ``unknown`` (N,); other rows with NaN are refused, because 0 would say that the node is not in the class. Floating-point
    numbers that cannot be such labels, and with ``are_real`` any numbers, are targets of regression: float32 of shape (N,) or
    (N, K), NaN for none; -1 is a number then. Whole numbers are refused without ``are_real``: they may be classes with marks such
    as -100."""
    if y is None:
        return None, NO_TASK, 0, None
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.shape[0] != num_nodes or y.dtype.kind not in "biuf":
        raise HpcgnnError(
            f"{where}: y is {y.dtype} of shape {y.shape}, but it should be numbers of shape ({num_nodes},) or ({num_nodes}, C)"
        )
    if y.size and (are_real or (y.dtype.kind == "f" and not _may_be_labels(y))):
        targets = np.where(np.isnan(y), np.nan, as_float32(y))
        if not are_real and (np.isnan(y) | ((y == np.trunc(y)) & np.isfinite(targets))).all():
            raise HpcgnnError(f"{where}: y has whole numbers that cannot be classes: {_IF_REAL}")
        return targets, REGRESSION, y.shape[1] if y.ndim == 2 else 1, None
    unknown = _unknown_rows(y, where) if y.ndim == 2 and y.dtype.kind == "f" else None
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1 if y.ndim == 1 else 0, y)
    if y.ndim == 1:
        classes = max(int(y.max()) + 1, 0) if y.size else 0
        if classes > max(y.size, FEW_CLASSES):  # memory grows with the number of classes
            raise HpcgnnError(
                f"{where}: y of node {int(y.argmax())} is {classes - 1}, but there are only {y.size:,} nodes: number the classes "
                f"from 0 without gaps; {_IF_REAL}"
            )
        return y.astype(np.int64), SINGLE_LABEL, classes, None
    is_label = (y == 0) | (y == 1)
    if not is_label.all() or not y.shape[1]:
        row, column = np.argwhere(~is_label)[0] if y.size else (0, 0)
        found = f", but that of node {row} is {y[row, column]} in column {column}" if y.size else ""
        raise HpcgnnError(
            f"{where}: y has {y.shape[1]} columns, so that all values should be 0 or 1{found}; {_IF_REAL}"
        )
    return y.astype(np.uint8), MULTI_LABEL, y.shape[1], unknown


def _may_be_labels(y: np.ndarray) -> bool:
    """Return whether all numbers that are not NaN are -1 or classes below the number of nodes, or in (N, C) 0 or 1."""
    least, end = (-1, len(y)) if y.ndim == 1 else (0, 2)
    return bool((np.isnan(y) | ((y == np.trunc(y)) & (y >= least) & (y < end))).all())


def kind_note(y: np.ndarray | None) -> list[str]:
    """A note about labels whose kind is a guess: targets of regression, and (N, C) labels with a single 1 in each row, which may
    be classes."""
    if y is not None and y.dtype == np.float32:
        return ["y has numbers that cannot be classes, and is taken as targets of regression"]
    if y is None or y.ndim == 1 or y.shape[1] < 2 or not (y.sum(axis=1) == 1).all():
        return []
    return [
        "each row of y has a single 1, and is taken as independent labels: give y.argmax(1) if it is one class a node"
    ]


def _unknown_rows(y: np.ndarray, where: str) -> np.ndarray:
    """(N,) bool, the rows of NaN; rows of which only a part is NaN are refused."""
    unknown = np.isnan(y)
    rows: np.ndarray = unknown.all(axis=1)
    unknown[rows] = False
    if unknown.any():
        row, column = np.argwhere(unknown)[0]
        raise HpcgnnError(
            f"{where}: y has {int(unknown.sum()):,} unknown entries (NaN) beside known ones, the first for node {row} in column "
            f"{column}: fill in 0 or 1, or make the whole row NaN, which means a node without labels"
        )
    return rows


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
    known = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y) if y.dtype.kind == "f" else y
    return known if y.ndim == 1 else np.any(known, axis=1)


_NUMBERS = {
    "train_mask": ("train_idx", "train_index"),
    "val_mask": ("val_idx", "valid_idx", "val_index", "valid_index"),
    "test_mask": ("test_idx", "test_index"),
}


def read_masks(
    get: Callable[[str], Any], num_nodes: int, split: int | None, where: str, *, of_type: bool = False
) -> tuple[dict[str, np.ndarray], list[str]]:
    """``(masks, notes)``: the masks that are there, and phrases for users about a choice that was made for them. get: returns the
    array with a name, or None. split: the number of the split from 0; without one, a mask for one split comes before those for
    several, of which the first is taken. of_type: there may be none. Raises HpcgnnError for other shapes and a missing split."""
    single, several = dict[str, tuple[str, np.ndarray]](), dict[str, tuple[str, np.ndarray]]()
    for mask in MASKS:
        for name in (mask, f"{mask}s", *_NUMBERS[mask]):
            if (array := get(name)) is not None:
                is_single = array.ndim == 1 and name != f"{mask}s"
                (single if is_single else several).setdefault(mask, (name, array))
    if split and not several and (single or not of_type):
        raise _no_such(split, 1, where)
    masks, notes = {}, []
    for mask in MASKS:
        if mask in several and (split is not None or mask not in single):
            masks[mask], count = _column(*several[mask], num_nodes, split or 0, where)
            if split is None and count > 1:
                notes.append(
                    f"{several[mask][0]} holds {count} splits, of which split 0 is taken: choose another with ?split=K, or with "
                    "mask_column=K in Python"
                )
        elif mask in single:
            masks[mask], note = _single(*single[mask], num_nodes, where)
            notes += note
    return masks, notes[:1]


def _column(name: str, array: np.ndarray, num_nodes: int, split: int, where: str) -> tuple[np.ndarray, int]:
    """The mask (N,) of one of several splits, and their number. Names that end with s have splits in rows first."""
    rows_first = name.endswith("s")
    for axis in (0, 1) if rows_first else (1, 0):
        if array.ndim == 2 and array.shape[1 - axis] == num_nodes:
            if split >= array.shape[axis]:
                raise _no_such(split, array.shape[axis], where)
            return array.take(split, axis), array.shape[axis]
    wanted = "(splits, nodes) or (nodes, splits)" if rows_first else "(nodes,) or (nodes, splits)"
    raise HpcgnnError(f"{where}: {name} has shape {array.shape}, but it should be {wanted} for {num_nodes} nodes")


def _no_such(split: int, count: int, where: str) -> HpcgnnError:
    found = "there is one split, which is split 0" if count == 1 else f"there are {count} splits, counted from 0"
    return HpcgnnError(f"{where}: split={split} was given, but {found}")


def _single(name: str, array: np.ndarray, num_nodes: int, where: str) -> tuple[np.ndarray, list[str]]:
    """A mask (N,), and a note if it was made from node numbers under the name of a mask."""
    if array.dtype == np.bool_ and array.size == num_nodes:
        return array, []
    is_mask = array.size == num_nodes and bool(np.isin(array, (0, 1)).all())
    if name in MASKS and (is_mask or array.dtype.kind not in "iu"):
        return array, []  # its shape and type are checked with those of other sources
    mask = mask_of(array, name, num_nodes, where)
    return mask, [f"{name} holds the numbers of {array.size:,} nodes, and not a value for each node"] * (name in MASKS)


def mask_of(numbers: np.ndarray, name: str, num_nodes: int, where: str) -> np.ndarray:
    """The mask (N,) bool of nodes by their numbers (k,). Raises HpcgnnError for numbers out of range, and for equal ones."""
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise HpcgnnError(
            f"{where}: {name} is {numbers.dtype} of shape {numbers.shape}, but it should be the numbers of nodes"
        )
    mask = np.zeros(num_nodes, np.bool_)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= num_nodes):
        bad = int(np.flatnonzero((numbers < 0) | (numbers >= num_nodes))[0])
        raise HpcgnnError(f"{where}: {name} has node {numbers[bad]}, but node ids run from 0 to {num_nodes - 1}")
    mask[numbers.astype(np.int64)] = True
    if int(mask.sum()) != numbers.size:
        raise HpcgnnError(
            f"{where}: {name} is {numbers.dtype} of shape {numbers.shape}, but it should be bool of shape ({num_nodes},), or "
            "the numbers of nodes, each once"
        )
    return mask


class NodeChecker:
    """Checks nodes piece by piece, in order. Raises :class:`HpcgnnError` for values with which no model can be trained."""

    def __init__(self, where: str, task: str, num_classes: int) -> None:
        self._where, self._task = where, task
        self._in_graph = np.zeros(num_classes, np.int64)
        self._in_training = np.zeros(num_classes, np.int64)
        self._labelled_in_training = 0
        self.split_sizes = dict.fromkeys(MASKS, 0)

    def features(self, first: int, x: Rows) -> None:
        """Refuse NaN and Inf; values that do not fit into float32 have become Inf before."""
        values = x if isinstance(x, np.ndarray) else x.data
        finite = np.isfinite(values)
        if finite.all():
            return
        bad = int(np.flatnonzero(~finite.reshape(-1))[0])
        if isinstance(x, np.ndarray):
            row, column = divmod(bad, x.shape[1])
        else:
            row, column = int(np.searchsorted(x.indptr, bad, side="right")) - 1, int(x.indices[bad])
        value = values.reshape(-1)[bad]
        raise HpcgnnError(
            f"{self._where}: x of node {first + row} is {value} in column {column}: features must be finite float32 numbers"
        )

    def labels(self, first: int, y: np.ndarray) -> None:
        """Refuse classes below -1 and infinite targets, and count the nodes of each class or target."""
        if y.dtype.kind == "f" and np.isinf(y).any():
            row = int(np.flatnonzero(np.isinf(y).reshape(len(y), -1).any(axis=1))[0])
            raise HpcgnnError(
                f"{self._where}: y of node {first + row} is infinite as float32: targets must be finite, or NaN for none"
            )
        if y.dtype.kind == "i" and y.size and y.min() < -1:
            bad = int(np.flatnonzero(y < -1)[0])
            raise HpcgnnError(
                f"{self._where}: y of node {first + bad} is {y[bad]}: classes count from 0, and -1 means no label"
            )
        self._in_graph += self._per_class(y)

    def masks(self, first: int, masks: dict[str, np.ndarray], y: np.ndarray | None) -> None:
        """Refuse nodes in two masks, and nodes of a single-label split without a label."""
        total = sum(mask.astype(np.int8) for mask in masks.values())
        if np.any(total > 1):
            node = int(np.flatnonzero(total > 1)[0])
            names = " and ".join(name for name, mask in masks.items() if mask[node])
            raise HpcgnnError(f"{self._where}: node {first + node} is in {names}: a node can be in only one of them")
        if y is None:
            raise HpcgnnError(f"{self._where} has masks but no labels: masks say which labels are for training")
        has_label = labelled(y)
        for name, mask in masks.items():
            self.split_sizes[name] += int(mask.sum())
            # A multi-label row of zeros can also mean that the node is in no class, so such a node may be in a split.
            if self._task == SINGLE_LABEL and (mask & ~has_label).any():
                node = int(np.flatnonzero(mask & ~has_label)[0])
                raise HpcgnnError(f"{self._where}: node {first + node} is in {name} but has no label")
        training = masks["train_mask"]
        self._in_training += self._per_class(y[training])
        self._labelled_in_training += int(has_label[training].sum())

    def finish(self, has_masks: bool) -> list[str]:
        """Raise HpcgnnError for a split without training nodes; return notes for users, also about classes without a node, as a
        part of a graph has them."""
        missing = np.flatnonzero(self._in_graph == 0)
        if has_masks and self._labelled_in_training == 0:
            raise HpcgnnError(f"{self._where}: train_mask selects no labelled node: make another split with --split")
        untrained = np.flatnonzero(self._in_training == 0) if has_masks else missing
        if not untrained.size:
            return []
        some = ", ".join(map(str, untrained[:5].tolist())) + (", ..." if untrained.size > 5 else "")
        has_none = "have no training node, and cannot be learned" if has_masks else "have no node"
        things = "targets" if self._task == REGRESSION else "classes"
        told = f"{untrained.size} of {self._in_graph.size} {things} {has_none}: {some}"
        advice = "never appear in y: number classes from 0, or say --labels real if they are targets of regression"
        return [f"{told}; {missing.size} {advice}" if missing.size and self._task == SINGLE_LABEL else told]

    def _per_class(self, y: np.ndarray) -> np.ndarray:
        if y.dtype.kind == "f":
            return (~np.isnan(y)).reshape(len(y), self._in_graph.size).sum(axis=0)
        if y.ndim == 2:
            return y.sum(axis=0, dtype=np.int64)
        return np.bincount(y[y >= 0], minlength=self._in_graph.size)
