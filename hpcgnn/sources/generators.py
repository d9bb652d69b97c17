"""Graphs that are computed: two random models, where a point for each class plus noise makes features, and scikit-learn's digits.

``rmat:scale=S,degree=D,...``: a power-law graph of 2**S nodes and D * 2**S edges, with classes and features. Each edge falls S
times into one of four quadrants with probabilities a, b, c and 1 - a - b - c (Graph500's by default). This makes communities
within communities, of nodes that share the high bits of their place. Classes are equal ranges of places. Ids are scrambled
places, so that they do not show the class. Parallel edges and self-loops occur, as in Graph500.

``sbm:nodes=N,blocks=B,degree=D,...``: an undirected stochastic block model, where a node's class is its block. An edge joins a
random node to another node of its block with probability ``homophily``, and else to a node of another block. Node v is in block v
mod B. Every edge is stored in both directions, and a pair may have several edges. ``degree`` is the mean in-degree.

With ``types=T``, an edge of both has one of T types, which follows from the sum of the ids at its ends.

``digits``: the 1,797 handwritten digits that scikit-learn contains, a real data set. Each image (64 grey values from 0 to 1) has
edges, in both directions, to the 8 images whose pixels are nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.random_kernels import key_for, noisy_rows, normal_rows, rmat_classes, rmat_edges, sbm_edges
from hpcgnn.data.schema import SINGLE_LABEL
from hpcgnn.sources.base import CHUNK_EDGES, SOURCES, ArraySource, Source, SourceInfo, Spec
from hpcgnn.sources.edges import EdgeChunk, EdgeForm

_LARGEST_WIDTH = 2**31 - 1
_LARGEST_DEGREE = float(2**31)
_LARGEST_SCALE = 31
_QUADRANTS = {"a": 0.57, "b": 0.19, "c": 0.19}
_RMAT_EDGES, _SCRAMBLE, _BLOCK_EDGES, _CENTROIDS, _NOISE = 1, 2, 3, 11, 12  # numbers of these uses of a seed
_NEIGHBOURS = 8
_GREYS = 16.0


class _Generated(Source):
    """A source that computes every edge and row from its number. ``write_edges(first, src, dst)`` writes the edges from number
    ``first`` on to ``src`` and ``dst``, (n,) int64; ``labels_of(first, last)`` returns the classes of nodes, (n,) int64."""

    def __init__(
        self,
        spec: Spec,
        num_nodes: int,
        num_edges: int,
        classes: int,
        seed: int,
        write_edges: Callable[[int, np.ndarray, np.ndarray], None],
        labels_of: Callable[[int, int], np.ndarray],
    ) -> None:
        num_features, signal = spec.take_int("features", 64), spec.take_float("signal", 3.0)
        self._types = spec.take_int("types", 0)
        if num_features > _LARGEST_WIDTH:
            raise HpcgnnError(f"{spec.text}: features is at most {_LARGEST_WIDTH}")
        scale = np.float32(signal / np.sqrt(max(num_features, 1)))
        self._centroids = normal_rows(key_for(seed, _CENTROIDS), 0, max(classes, 1), num_features) * scale
        self._key, self._write_edges, self._labels_of = key_for(seed, _NOISE), write_edges, labels_of
        self.info = SourceInfo(
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_features=num_features,
            num_classes=classes,
            task=SINGLE_LABEL,
            default_split=f"random:0.6,0.2,0.2,{seed}",
            seed=seed,
            form=EdgeForm(num_types=self._types),
        )

    def edges(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[EdgeChunk]:
        total = self.info.num_edges or 0
        for first in range(0, total, chunk_edges):
            src, dst = np.empty((2, min(chunk_edges, total - first)), np.int64)
            self._write_edges(first, src, dst)
            yield EdgeChunk(src, dst, type=(src + dst) % self._types if self._types else None)

    def features(self, first: int, last: int) -> np.ndarray | None:
        if not self.info.num_features:
            return None
        out = np.empty((last - first, self.info.num_features), np.float32)
        noisy_rows(self._key, first, self._centroids, self._labels_of(first, last), out)
        return out

    def labels(self, first: int, last: int) -> np.ndarray:
        return self._labels_of(first, last)


@SOURCES.register("rmat")
def _open_rmat(spec: Spec, folder: Path) -> Source:
    scale = spec.take_int("scale", least=1)
    if scale > _LARGEST_SCALE:
        raise HpcgnnError(f"{spec.text}: scale is at most {_LARGEST_SCALE}")
    nodes, seed = 1 << scale, spec.take_int("seed", 0)
    classes = spec.take_int("classes", 16, least=1)
    if classes > nodes:
        raise HpcgnnError(f"{spec.text}: {classes} classes are more than {nodes} nodes")
    corners = np.cumsum([spec.take_float(name, usual, most=1) for name, usual in _QUADRANTS.items()])
    if corners[-1] > 1 + 1e-9:
        raise HpcgnnError(f"{spec.text}: a + b + c is {corners[-1]:g}, but it should be at most 1")
    thresholds = np.round(corners * 65536).astype(np.uint64)
    scramble_key = key_for(seed, _SCRAMBLE)
    write_edges = partial(rmat_edges, key_for(seed, _RMAT_EDGES), scramble_key, scale, thresholds)

    def labels_of(first: int, last: int) -> np.ndarray:
        out = np.empty(last - first, np.int64)
        rmat_classes(scramble_key, scale, classes, first, out)
        return out

    num_edges = round(spec.take_float("degree", 16, most=_LARGEST_DEGREE) * nodes)
    return _Generated(spec, nodes, num_edges, classes, seed, write_edges, labels_of)


@SOURCES.register("sbm")
def _open_sbm(spec: Spec, folder: Path) -> Source:
    nodes, seed = spec.take_int("nodes", least=2), spec.take_int("seed", 0)
    blocks = spec.take_int("blocks", 10, least=1)
    if nodes < 2 * blocks:
        raise HpcgnnError(f"{spec.text}: {blocks} blocks need at least two nodes each, there are {nodes} nodes")
    within = np.uint64(round(spec.take_float("homophily", 0.8, most=1) * 2**32))
    write_edges = partial(sbm_edges, key_for(seed, _BLOCK_EDGES), nodes, blocks, within)
    num_edges = 2 * round(spec.take_float("degree", 16, most=_LARGEST_DEGREE) * nodes / 2)
    return _Generated(
        spec, nodes, num_edges, blocks, seed, write_edges, lambda first, last: np.arange(first, last) % blocks
    )


@SOURCES.register("digits")
def _open_digits(spec: Spec, folder: Path) -> Source:
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    # Distances are integers, and ties are decided by id, so that every machine makes the same graph.
    whole = pixels.astype(np.int64)
    squares = (whole**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * (whole @ whole.T)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    dst = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS].ravel()
    src = np.repeat(np.arange(digit.size), _NEIGHBOURS)
    pairs = np.unique(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]), axis=1)
    return ArraySource(
        spec.text, digit.size, pairs, x=pixels / _GREYS, y=digit, default_split="random:0.6,0.2,0.2,0", seed=0
    )
