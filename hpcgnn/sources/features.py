"""Node features during a conversion: they are made for graphs that have none, and normalised on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import key_for, normal_rows
from hpcgnn.data.schema import FULL
from hpcgnn.sources.arrays import as_float32
from hpcgnn.sources.base import Rows

_RANDOM = 31  # number of this use of a seed
_LARGEST_WIDTH = 2**31 - 1
DENSE = "dense"


@dataclass(frozen=True)
class FeatureRule:
    """``kind`` is degree, onehot, random or dense; ``columns`` is 0 for onehot and dense."""

    kind: str
    columns: int
    seed: int = 0


@dataclass(frozen=True)
class Features:
    """Features of F columns. ``nnz``: number of nonzeros, None for dense features. ``rows(first, last)`` computes or reads an
    (n, F) array or CSR matrix of ``dtype``."""

    columns: int
    nnz: int | None
    rows: Callable[[int, int], Rows | None]
    dtype: str = FULL


def parse_features(text: str) -> FeatureRule:
    """The rule of a text ``degree:D``, ``onehot``, ``random:D[,SEED]`` or ``dense``. Raises HpcgnnError for any other."""
    kind, _, rest = text.partition(":")
    words = rest.split(",") if rest else []
    takes = {"degree": (1, 1), "onehot": (0, 0), "random": (1, 2), DENSE: (0, 0)}.get(kind)
    if takes and takes[0] <= len(words) <= takes[1] and all(word.isdecimal() for word in words):
        numbers = [int(word) for word in words] + [0, 0]
        if not takes[1] or 0 < numbers[0] <= _LARGEST_WIDTH:
            return FeatureRule(kind, numbers[0], numbers[1])
    raise HpcgnnError(
        f"--features {text!r} is not understood: write degree:D, onehot, random:D[,SEED], with D > 0, or dense"
    )


def make_features(rule: FeatureRule, num_nodes: int, in_degrees: Callable[[int, int], np.ndarray]) -> Features:
    """Make features from in-degrees, ids or random numbers; they replace those of the source.

    ``degree:D`` has a single 1 in each row, in column min(in-degree, D - 1), where in-degrees count the stored edges;
    ``onehot`` is the identity matrix; both are sparse. ``random:D`` is dense, with mean 0 and variance 1.
    """
    if rule.kind == "random":
        key = key_for(rule.seed, _RANDOM)
        return Features(rule.columns, None, lambda first, last: normal_rows(key, first, last - first, rule.columns))
    if rule.kind == "degree":
        return Features(
            rule.columns,
            num_nodes,
            lambda first, last: _one_hot(np.minimum(in_degrees(first, last), rule.columns - 1), rule.columns),
        )
    if num_nodes > _LARGEST_WIDTH:
        raise HpcgnnError(
            f"--features onehot makes a column for each node, and {num_nodes:,} columns are too many: use random:D"
        )
    return Features(num_nodes, num_nodes, lambda first, last: _one_hot(np.arange(first, last), num_nodes))


def written_out(given: Features) -> Features:
    """The same values as dense features, with their zeros."""

    def rows(first: int, last: int) -> Rows | None:
        x = given.rows(first, last)
        return x.toarray() if isinstance(x, sp.csr_matrix) else x

    return Features(given.columns, None, rows, given.dtype)


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
