"""Checks of node values in the pieces in which they are written, and of their sums over the graph."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import MASKS, SINGLE_LABEL
from hpcgnn.sources.arrays import labelled
from hpcgnn.sources.base import Rows


class NodeChecker:
    """Checks nodes piece by piece, in order. Raises :class:`HpcgnnError` for values with which no model can be trained."""

    def __init__(self, where: str, task: str, num_classes: int, *, may_miss_classes: bool = False) -> None:
        """may_miss_classes: a class without a node is no mistake, as in multi-label graphs and for random labels."""
        self._where, self._task = where, task
        self._may_miss_classes = may_miss_classes or task != SINGLE_LABEL
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
        """Refuse classes below -1, and count each class."""
        if y.ndim == 1 and y.size and y.min() < -1:
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
        """Raise HpcgnnError for a class that never appears, and for a split without training nodes; return notes for users."""
        missing = np.flatnonzero(self._in_graph == 0)
        if missing.size and not self._may_miss_classes:
            raise HpcgnnError(
                f"{self._where}: class {missing[0]} of {self._in_graph.size} never appears in y: "
                "number the classes from 0 without gaps"
            )
        if has_masks and self._labelled_in_training == 0:
            raise HpcgnnError(f"{self._where}: train_mask selects no labelled node: make another split with --split")
        untrained = np.flatnonzero(self._in_training == 0) if has_masks else missing
        if not untrained.size:
            return []
        some = ", ".join(map(str, untrained[:5].tolist())) + (", ..." if untrained.size > 5 else "")
        has_none = "have no training node, and cannot be learned" if has_masks else "have no node"
        return [f"{untrained.size} of {self._in_graph.size} classes {has_none}: {some}"]

    def _per_class(self, y: np.ndarray) -> np.ndarray:
        if y.ndim == 2:
            return y.sum(axis=0, dtype=np.int64)
        return np.bincount(y[y >= 0], minlength=self._in_graph.size)
