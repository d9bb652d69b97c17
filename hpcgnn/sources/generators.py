"""Features and methods of generated graphs: a point for each class plus noise, and edges computed from their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SINGLE_LABEL
from hpcgnn.data.random_kernels import key_for, noisy_rows, normal_rows, rmat_classes, rmat_edges, sbm_edges
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, ArraySource, SourceInfo, Spec
from hpcgnn.sources.edges import EdgeChunk

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


_RMAT_EDGES, _SCRAMBLE = 1, 2  # numbers of these uses of a seed
_LARGEST_SCALE = 31
_QUADRANTS = {"a": 0.57, "b": 0.19, "c": 0.19}


class RmatSource(GeneratedSource):
    """An R-MAT graph."""

    def __init__(self, spec: Spec) -> None:
        self._scale = spec.take_int("scale", least=1)
        if self._scale > _LARGEST_SCALE:
            raise HpcgnnError(f"{spec.text}: scale is at most {_LARGEST_SCALE}")
        nodes, seed = 1 << self._scale, spec.take_int("seed", 0)
        self._classes = spec.take_int("classes", 16, least=1)
        if self._classes > nodes:
            raise HpcgnnError(f"{spec.text}: {self._classes} classes are more than {nodes} nodes")
        num_features, self._features = take_features(spec, self._classes, seed)
        corners = np.cumsum([spec.take_float(name, usual, most=1) for name, usual in _QUADRANTS.items()])
        if corners[-1] > 1 + 1e-9:
            raise HpcgnnError(f"{spec.text}: a + b + c is {corners[-1]:g}, but it should be at most 1")
        self._thresholds = np.round(corners * 65536).astype(np.uint64)
        self._edge_key, self._scramble_key = key_for(seed, _RMAT_EDGES), key_for(seed, _SCRAMBLE)
        self.info = SourceInfo(
            num_nodes=nodes,
            num_edges=round(spec.take_float("degree", 16, most=LARGEST_DEGREE) * nodes),
            num_features=num_features,
            num_classes=self._classes,
            task=SINGLE_LABEL,
            default_split=f"random:0.6,0.2,0.2,{seed}",
            seed=seed,
        )

    def _write_edges(self, first: int, src: np.ndarray, dst: np.ndarray) -> None:
        rmat_edges(self._edge_key, self._scramble_key, self._scale, self._thresholds, first, src, dst)

    def labels(self, first: int, last: int) -> np.ndarray:
        """See :class:`hpcgnn.sources.base.Source`."""
        out = np.empty(last - first, np.int64)
        rmat_classes(self._scramble_key, self._scale, self._classes, first, out)
        return out


@SOURCES.register("rmat")
def open_rmat(spec: Spec, folder: Path) -> RmatSource:
    """See the module's text."""
    return RmatSource(spec)


_BLOCK_EDGES = 3  # number of this use of a seed


class SbmSource(GeneratedSource):
    """A stochastic block model."""

    def __init__(self, spec: Spec) -> None:
        nodes, seed = spec.take_int("nodes", least=2), spec.take_int("seed", 0)
        self._blocks = spec.take_int("blocks", 10, least=1)
        if nodes < 2 * self._blocks:
            raise HpcgnnError(
                f"{spec.text}: {self._blocks} blocks need at least two nodes each, there are {nodes} nodes"
            )
        self._within = np.uint64(round(spec.take_float("homophily", 0.8, most=1) * 2**32))
        num_features, self._features = take_features(spec, self._blocks, seed)
        self._key = key_for(seed, _BLOCK_EDGES)
        self.info = SourceInfo(
            num_nodes=nodes,
            num_edges=2 * round(spec.take_float("degree", 16, most=LARGEST_DEGREE) * nodes / 2),
            num_features=num_features,
            num_classes=self._blocks,
            task=SINGLE_LABEL,
            default_split=f"random:0.6,0.2,0.2,{seed}",
            seed=seed,
        )

    def _write_edges(self, first: int, src: np.ndarray, dst: np.ndarray) -> None:
        sbm_edges(self._key, self.info.num_nodes, self._blocks, self._within, first, src, dst)

    def labels(self, first: int, last: int) -> np.ndarray:
        """See :class:`hpcgnn.sources.base.Source`."""
        return np.arange(first, last, dtype=np.int64) % self._blocks


@SOURCES.register("sbm")
def open_sbm(spec: Spec, folder: Path) -> SbmSource:
    """See the module's text."""
    return SbmSource(spec)


_NEIGHBOURS = 8
_GREYS = 16.0


@SOURCES.register("digits")
def open_digits(spec: Spec, folder: Path) -> ArraySource:
    """The graph in which each image (64 grey values from 0 to 1) has edges, in both directions, to the 8 images whose pixels are
    nearest."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    dst = _nearest(pixels.astype(np.int64)).ravel()
    src = np.repeat(np.arange(digit.size), _NEIGHBOURS)
    pairs = np.unique(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]), axis=1)
    return ArraySource(
        spec.text, digit.size, pairs, x=pixels / _GREYS, y=digit, default_split="random:0.6,0.2,0.2,0", seed=0
    )


def _nearest(pixels: np.ndarray) -> np.ndarray:
    """(n, 8) nearest other images. Distances are integers, and ties are decided by id, so that every machine makes the same
    graph."""
    squares = (pixels**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    return np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
