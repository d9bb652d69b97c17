"""Features, labels and splits that a conversion makes from rules of the user, ``KIND:NUMBER,..[,SEED]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import draws, key_for, normal_rows
from hpcgnn.data.schema import FULL, MASKS, MULTI_LABEL, NO_TASK, REGRESSION, SINGLE_LABEL, NodeType
from hpcgnn.sources.base import CHUNK_EDGES, ArraySource, Source
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.node_values import Rows, as_float32, labelled

_SPLIT, _RANDOM, _LABELS = 21, 31, 41  # numbers of these uses of a seed
_LARGEST_WIDTH = 2**31 - 1
_CHUNK_NODES = 1 << 20
DENSE, REAL = "dense", "real"


class Rule(NamedTuple):
    """``numbers``: columns of features (0 for onehot and dense), number of classes, or a split's three shares of all labelled
    nodes (with ``per-class`` the numbers of nodes of each class for training and for validation)."""

    kind: str
    numbers: tuple[float, ...]
    seed: int = 0


@dataclass(frozen=True)
class Features:
    """Features of F columns. ``nnz``: number of nonzeros, None for dense features. ``rows(first, last)`` computes or reads an
    (n, F) array or CSR matrix of ``dtype``; with ``by_type``, of nodes of one type, an array with the columns of the type."""

    columns: int
    nnz: int | None
    rows: Callable[[int, int], Rows | None]
    dtype: str = FULL
    by_type: bool = False


def _whole_number_rule(text: str, lengths: dict[str, tuple[int, ...]]) -> Rule | None:
    """The rule of a text ``KIND:NUMBER[,SEED]``, or None. lengths: of the list of numbers that may follow each kind."""
    kind, _, rest = text.partition(":")
    words = rest.split(",") if rest else []
    if len(words) not in lengths.get(kind, ()) or not all(word.isdecimal() for word in words):
        return None
    number, seed, *_ = *map(int, words), 0, 0
    return Rule(kind, (number,), seed) if not words or 0 < number <= _LARGEST_WIDTH else None


def parse_features(text: str) -> Rule:
    """The rule of a text ``degree:D``, ``onehot``, ``random:D[,SEED]`` or ``dense``. Raises HpcgnnError for any other."""
    if rule := _whole_number_rule(text, {"degree": (1,), "onehot": (0,), "random": (1, 2), DENSE: (0,)}):
        return rule
    raise HpcgnnError(
        f"--features {text!r} is not understood: write degree:D, onehot, random:D[,SEED], with D > 0, or dense"
    )


def parse_labels(text: str) -> Rule:
    """The rule of a text ``random:C[,SEED]`` or ``real``. Raises HpcgnnError for any other."""
    if rule := _whole_number_rule(text, {"random": (1, 2), REAL: (0,)}):
        return rule
    raise HpcgnnError(f"--labels {text!r} is not understood: write random:C[,SEED], with C > 0 classes, or real")


def make_features(rule: Rule, num_nodes: int, in_degrees: Callable[[int, int], np.ndarray]) -> Features:
    """Make features from in-degrees, ids or random numbers; they replace those of the source. ``degree:D`` has a single 1 in each
    row, in column min(in-degree, D - 1), where in-degrees count the stored edges; ``onehot`` is the identity matrix; both are
    sparse. ``random:D`` is dense, with mean 0 and variance 1."""
    columns = int(rule.numbers[0])
    if rule.kind == "random":
        key = key_for(rule.seed, _RANDOM)
        return Features(columns, None, lambda first, last: normal_rows(key, first, last - first, columns))
    if rule.kind == "degree":
        most = columns - 1
        return Features(
            columns, num_nodes, lambda first, last: _one_hot(np.minimum(in_degrees(first, last), most), columns)
        )
    if num_nodes > _LARGEST_WIDTH:
        raise HpcgnnError(
            f"--features onehot makes a column for each node, and {num_nodes:,} columns are too many: use random:D"
        )
    return Features(num_nodes, num_nodes, lambda first, last: _one_hot(np.arange(first, last), num_nodes))


def written_out(given: Features, types: tuple[NodeType, ...]) -> Features:
    """The same values as dense features, with their zeros; of nodes with types, those of each type's own columns."""
    firsts, columns = (np.cumsum([0, *(getattr(each, name) for each in types)]) for name in ("count", "columns"))

    def rows(first: int, last: int) -> Rows | None:
        x = given.rows(first, last)
        if isinstance(x, sp.csr_matrix) and types:
            kind = int(np.searchsorted(firsts, first, side="right")) - 1
            x = x[:, columns[kind] : columns[kind + 1]]
        return x.toarray() if isinstance(x, sp.csr_matrix) else x

    values = sum(each.count * each.columns for each in types) if types else None
    return Features(given.columns, values, rows, given.dtype, by_type=bool(types))


def row_normalised(x: Rows) -> Rows:
    """Each row divided by the sum of its absolute values, as float32; zero rows stay zero."""
    if isinstance(x, np.ndarray):
        x = as_float32(x)  # a sum of float16 values may be too large for float16
        sums = np.abs(x).sum(axis=1, keepdims=True)
        return np.divide(x, sums, out=np.zeros_like(x), where=sums > 0)
    sums = np.asarray(abs(x).sum(axis=1)).reshape(-1)
    scale = np.divide(1, sums, out=np.zeros_like(sums), where=sums > 0)
    return sp.csr_matrix((x.data * np.repeat(scale, np.diff(x.indptr)), x.indices, x.indptr), shape=x.shape)


def _one_hot(column: np.ndarray, columns: int) -> sp.csr_matrix:
    ones = np.ones(column.size, np.float32)
    return sp.csr_matrix((ones, column.astype(np.int32), np.arange(column.size + 1)), shape=(column.size, columns))


def relabelled(graph: Source, rule: Rule, where: str) -> Source:
    """The source with the labels that the rule makes. Raises HpcgnnError where it cannot be applied."""
    if rule.kind != REAL:
        return RandomLabels(graph, rule, where)
    if not isinstance(graph, ArraySource):
        raise HpcgnnError(f"{where} has no numbers as labels: leave --labels real out")
    return graph.with_real_labels()


class RandomLabels(Source):
    """A source with random labels, functions of seed and id, in place of its own. Without masks, nodes are divided by default."""

    def __init__(self, graph: Source, rule: Rule, where: str) -> None:
        classes = int(rule.numbers[0])
        if classes > graph.info.num_nodes:
            raise HpcgnnError(
                f"--labels random:{classes} asks for more classes than {where} has nodes, {graph.info.num_nodes:,}"
            )
        self._graph = graph.without_labels() if isinstance(graph, ArraySource) else graph
        self._key = key_for(rule.seed, _LABELS)
        self.info = replace(
            graph.info,
            task=SINGLE_LABEL,
            num_classes=classes,
            default_split=f"random:0.6,0.2,0.2,{rule.seed}",
            notes=(*graph.info.notes, "labels are random, so accuracies mean nothing"),
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        return self._graph.edges(chunk_edges)

    def features(self, first: int, last: int) -> Rows | None:
        return self._graph.features(first, last)

    def labels(self, first: int, last: int) -> np.ndarray:
        drawn = np.empty(last - first, np.uint64)
        draws(self._key, first, drawn)
        return (drawn % np.uint64(self.info.num_classes)).astype(np.int64)

    def masks(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        return self._graph.masks(first, last)


def parse_split(text: str) -> Rule:
    """The rule of a text ``random:TRAIN,VAL,TEST[,SEED]`` or ``per-class:TRAIN,VAL[,SEED]``. Raises HpcgnnError for any other."""
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
    return Rule(kind, shares, seed)


def make_split(
    rule: Rule, labels: Callable[[int, int], np.ndarray | None], num_nodes: int, task: str, where: str
) -> dict[str, np.ndarray]:
    """Make the three masks, (N,) bool each; nodes without a label, of which ``labels(first, last)`` tells, are in none. Nodes are
    sorted by a random number that depends only on the seed and the node's id, and the counts are exact; this takes about 30 bytes
    a node. Raises HpcgnnError where the graph has no labels, or a class has too few nodes."""
    if task == NO_TASK:
        raise HpcgnnError(
            f"{where} has no labels, so --split has nothing to split: use a source with labels, such as npz, pyg, ogb, "
            "dgl:FILE?y=NAME or graphml:FILE?y=KEY, add --labels random:C, or leave --split out"
        )
    per_class = rule.kind == "per-class"
    if per_class and task in (MULTI_LABEL, REGRESSION):
        has = "several" if task == MULTI_LABEL else "targets of regression"
        raise HpcgnnError(f"{where}: --split per-class needs one class a node, this graph has {has}; use random:")
    ids, classes = _labelled_nodes(labels, num_nodes)
    hashes = np.empty(num_nodes, np.uint64)
    draws(key_for(rule.seed, _SPLIT), 0, hashes)
    order = np.argsort(hashes[ids], kind="stable")
    if per_class:
        order = order[np.argsort(classes[order], kind="stable")]
        ends = _ends_per_class(classes[order], rule, where)
    else:
        count = ids.size
        bounds = np.minimum(np.round(np.cumsum(rule.numbers) * count).astype(np.int64), count)
        ends = np.searchsorted(bounds, np.arange(count), side="right")
    masks = {name: np.zeros(num_nodes, np.bool_) for name in MASKS}
    for index, name in enumerate(MASKS):
        masks[name][ids[order[ends == index]]] = True
    return masks


def _labelled_nodes(labels: Callable[[int, int], np.ndarray | None], num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) int64 ids of the nodes with a label, and (n,) int64 their classes, 0 for other labels."""
    ids, classes = [], []
    for first in range(0, num_nodes, _CHUNK_NODES):
        y = labels(first, min(first + _CHUNK_NODES, num_nodes))
        assert y is not None
        found = np.flatnonzero(labelled(y))
        ids.append(found + first)
        classes.append(y[found] if y.ndim == 1 and y.dtype.kind == "i" else np.zeros(found.size, np.int64))
    return np.concatenate(ids), np.concatenate(classes)


def _ends_per_class(classes: np.ndarray, rule: Rule, where: str) -> np.ndarray:
    """For nodes sorted by class, the mask of each: 0 (training) for the first nodes of a class, 1 (validation) for the next,
    2 (test) for the rest."""
    counts = np.bincount(classes)
    train, val = map(int, rule.numbers)
    few = np.flatnonzero((counts > 0) & (counts < train + val))
    if few.size:
        raise HpcgnnError(
            f"{where}: class {few[0]} has {counts[few[0]]} labelled nodes, --split per-class:{train},{val} needs "
            f"{train + val} in each class: ask for fewer"
        )
    rank = np.arange(classes.size) - (np.cumsum(counts) - counts)[classes]
    return np.searchsorted([train, train + val], rank, side="right")
