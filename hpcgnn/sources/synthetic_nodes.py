"""Features and methods of generated graphs: a point for each class plus noise, and edges computed from their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import key_for, noisy_rows, normal_rows
from hpcgnn.sources.base import CHUNK_EDGES, SourceInfo
from hpcgnn.sources.edges import EdgeChunk
from hpcgnn.sources.spec import Spec

LARGEST_WIDTH = 2**31 - 1
LARGEST_DEGREE = float(2**31)

_CENTROIDS, _NOISE = 11, 12  # numbers of these uses of a seed


class ClassFeatures:
    """Features whose row v is the point of v's class, at a distance of about ``signal`` from the origin, plus noise with a
    standard deviation of 1."""

    def __init__(self, classes: int, num_features: int, signal: float, seed: int) -> None:
        scale = np.float32(signal / np.sqrt(max(num_features, 1)))
        self._centroids = normal_rows(key_for(seed, _CENTROIDS), 0, max(classes, 1), num_features) * scale
        self._key = key_for(seed, _NOISE)

    def rows(self, first: int, classes: np.ndarray) -> np.ndarray:
        """(n, F) float32 features of the n nodes from ``first`` on, whose ``classes`` are (n,) int64."""
        out = np.empty((classes.size, self._centroids.shape[1]), np.float32)
        noisy_rows(self._key, first, self._centroids, classes, out)
        return out


def take_features(spec: Spec, classes: int, seed: int) -> tuple[int, ClassFeatures]:
    """The number of features and the features, from the options ``features`` (default 64) and ``signal`` (default 3) of all
    generators."""
    num_features, signal = spec.take_int("features", 64), spec.take_float("signal", 3.0)
    if num_features > LARGEST_WIDTH:
        raise HpcgnnError(f"{spec.text}: features is at most {LARGEST_WIDTH}")
    return num_features, ClassFeatures(classes, num_features, signal, seed)


class GeneratedSource(ABC):
    """A source that computes every edge and row from its number. A subclass sets ``info`` and ``_features``."""

    info: SourceInfo
    _features: ClassFeatures

    @abstractmethod
    def labels(self, first: int, last: int) -> np.ndarray:
        """See :class:`hpcgnn.sources.base.Source`."""

    @abstractmethod
    def _write_edges(self, first: int, src: np.ndarray, dst: np.ndarray) -> None:
        """Write the edges from number ``first`` on to ``src`` and ``dst``, (n,) int64."""

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        """See :class:`hpcgnn.sources.base.Source`."""
        total = self.info.num_edges or 0
        for first in range(0, total, chunk_edges):
            src, dst = np.empty((2, min(chunk_edges, total - first)), np.int64)
            self._write_edges(first, src, dst)
            yield src, dst, None

    def features(self, first: int, last: int) -> np.ndarray | None:
        """See :class:`hpcgnn.sources.base.Source`."""
        return self._features.rows(first, self.labels(first, last)) if self.info.num_features else None

    def masks(self, first: int, last: int) -> None:
        """See :class:`hpcgnn.sources.base.Source`."""
        return
