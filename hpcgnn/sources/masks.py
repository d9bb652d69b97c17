"""The masks of a source in any of the usual forms: (N,) for one split, two dimensions for several splits, or node numbers.

train_mask   (N,) bool or 0 and 1;  (N, splits) as in PyG, or (splits, N);  (k,) node numbers
train_masks  (splits, N) or (N, splits)
train_idx    (k,) node numbers, or (N,) bool;  also train_index, and valid_... or val_... for validation
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import MASKS

_NUMBERS = {
    "train_mask": ("train_idx", "train_index"),
    "val_mask": ("val_idx", "valid_idx", "val_index", "valid_index"),
    "test_mask": ("test_idx", "test_index"),
}


def read_masks(
    get: Callable[[str], Any], num_nodes: int, split: int | None, where: str
) -> tuple[dict[str, np.ndarray], list[str]]:
    """``(masks, notes)``: the masks that are there, and phrases for users about a choice that was made for them.

    get: returns the array with a name, or None. split: the number of the split from 0; without one, a mask for one split comes
    before those for several, of which the first is taken. Raises HpcgnnError for other shapes and for a split that is not there.
    """
    single: dict[str, tuple[str, np.ndarray]] = {}
    several: dict[str, tuple[str, np.ndarray]] = {}
    for mask in MASKS:
        for name in (mask, f"{mask}s", *_NUMBERS[mask]):
            array = get(name)
            if array is not None:
                is_single = array.ndim == 1 and name != f"{mask}s"
                (single if is_single else several).setdefault(mask, (name, array))
    if split and not several:
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
