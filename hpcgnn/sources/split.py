"""Splits of nodes into those for training, for the choice of a model (validation), and for the last test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import MASKS, MULTI_LABEL, NO_TASK
from hpcgnn.data.random_kernels import draws, key_for
from hpcgnn.sources.arrays import labelled

_SPLIT = 21  # number of this use of a seed
_CHUNK_NODES = 1 << 20


@dataclass(frozen=True)
class SplitRule:
    """A rule for a split. shares: with ``per_class`` the numbers of nodes of each class for training and for validation, and else
    three shares of all labelled nodes."""

    per_class: bool
    shares: tuple[float, ...]
    seed: int


def parse_split(text: str) -> SplitRule:
    """The rule of a text ``random:TRAIN,VAL,TEST[,SEED]`` or ``per-class:TRAIN,VAL[,SEED]``; the default seed is 0. Raises
    HpcgnnError for any other text."""
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
    """Make the three masks, (N,) bool each; nodes without a label are in none.

    ``labels(first, last)`` returns the labels of some nodes. Nodes are sorted by a random number that depends only on the seed
    and the node's id, and the counts are exact; this takes about 30 bytes a node. Raises :class:`HpcgnnError` where the graph
    has no labels, or a class has too few nodes.
    """
    if task == NO_TASK:
        raise HpcgnnError(
            f"{where} has no labels, so --split has nothing to split: use a source with labels, such as npz, pyg, ogb, "
            "dgl:FILE?y=NAME or graphml:FILE?y=KEY, add --labels random:C, or leave --split out"
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
    """(n,) int64 ids of the nodes with a label, and (n,) int64 their classes, 0 for multi-label."""
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
    """For nodes sorted by class, the mask of each: 0 (training) for the first nodes of a class, 1 (validation) for the next,
    2 (test) for the rest."""
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
