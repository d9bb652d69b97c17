"""Making a split: which nodes train, which choose the model, which are kept for the last test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.data.arrays import labelled
from hpcgnn.data.graph_file import MASKS, MULTI_LABEL, NO_TASK
from hpcgnn.data.random_kernels import draws, key_for
from hpcgnn.errors import HpcgnnError

_SPLIT = 21  # what a seed is used for
_CHUNK_NODES = 1 << 20


@dataclass(frozen=True)
class SplitRule:
    """``per_class``: ``shares`` holds k nodes per class to train and to validate; else three shares of all nodes."""

    per_class: bool
    shares: tuple[float, ...]
    seed: int


def parse_split(text: str) -> SplitRule:
    """``random:TRAIN,VAL,TEST[,SEED]`` or ``per-class:TRAIN,VAL[,SEED]``; seed 0 if none is given."""
    kind, _, rest = text.partition(":")
    wanted = {"random": 3, "per-class": 2}.get(kind)
    words = rest.split(",")
    try:
        if wanted is None or not wanted <= len(words) <= wanted + 1:
            raise ValueError
        seed = int(words[wanted]) if len(words) > wanted else 0
        per_class = kind == "per-class"
        shares = tuple((int if per_class else float)(word) for word in words[:wanted])
        if not all(share >= 0 for share in shares) or shares[0] == 0 or (not per_class and sum(shares) > 1 + 1e-9):
            raise ValueError
    except ValueError:
        raise HpcgnnError(
            f"--split {text!r} is not understood: write random:0.6,0.2,0.2[,SEED], with shares that add up to at most 1, "
            "or per-class:20,30[,SEED]"
        ) from None
    return SplitRule(per_class, shares, seed)


def make_split(
    rule: SplitRule, labels: Callable[[int, int], np.ndarray | None], num_nodes: int, task: str, where: str
) -> dict[str, np.ndarray]:
    """The three masks, (N,) bool each; nodes without a label are in none.

    ``labels(first, last)`` gives labels in pieces. Which node goes where follows from the seed and its id alone, and
    the counts are exact, which takes about 30 bytes a node of memory. Raises :class:`HpcgnnError` where the graph has
    no labels, or a class too few nodes.
    """
    if task == NO_TASK:
        raise HpcgnnError(
            f"{where} has no labels, so --split has nothing to split: labels come with npz, pyg and ogb sources"
        )
    if rule.per_class and task == MULTI_LABEL:
        raise HpcgnnError(f"{where}: --split per-class needs one class a node, this graph has several; use random:")
    ids, classes = _labelled_nodes(labels, num_nodes)
    hashes = np.empty(num_nodes, np.uint64)
    draws(key_for(rule.seed, _SPLIT), 0, hashes)
    order = np.argsort(hashes[ids], kind="stable")
    if rule.per_class:
        order = order[np.argsort(classes[order], kind="stable")]
        ends = _ends_per_class(classes[order], rule, where)
    else:
        count = ids.size
        bounds = np.minimum(np.round(np.cumsum(rule.shares) * count).astype(np.int64), count)
        ends = np.searchsorted(bounds, np.arange(count), side="right")
    masks = {name: np.zeros(num_nodes, np.bool_) for name in MASKS}
    for index, name in enumerate(MASKS):
        masks[name][ids[order[ends == index]]] = True
    return masks


def _labelled_nodes(labels: Callable[[int, int], np.ndarray | None], num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) int64 ids of nodes with a label, and (n,) int64 classes, 0 for multi-label."""
    ids, classes = [], []
    for first in range(0, num_nodes, _CHUNK_NODES):
        y = labels(first, min(first + _CHUNK_NODES, num_nodes))
        if y is None:
            raise ValueError("a graph with a task gave no labels")
        found = np.flatnonzero(labelled(y))
        ids.append(found + first)
        classes.append(y[found] if y.ndim == 1 else np.zeros(found.size, np.int64))
    return np.concatenate(ids), np.concatenate(classes)


def _ends_per_class(classes: np.ndarray, rule: SplitRule, where: str) -> np.ndarray:
    """For nodes sorted by class: 0 for the first k of a class, 1 for the next, 2 for the rest."""
    counts = np.bincount(classes)
    train, val = int(rule.shares[0]), int(rule.shares[1])
    few = np.flatnonzero((counts > 0) & (counts < train + val))
    if few.size:
        raise HpcgnnError(
            f"{where}: class {few[0]} has {counts[few[0]]} labelled nodes, --split per-class:{train},{val} needs "
            f"{train + val} in each class: ask for fewer"
        )
    rank = np.arange(classes.size) - (np.cumsum(counts) - counts)[classes]
    return np.searchsorted([train, train + val], rank, side="right")
