"""``rmat:scale=S,degree=D,...``: a power-law graph of 2**S nodes and D * 2**S edges, with classes and features.

Each edge falls S times into one of four quadrants with probabilities a, b, c and 1 - a - b - c (Graph500's 0.57, 0.19,
0.19 by default). This makes communities within communities, of nodes that share the high bits of their place. Classes are equal
ranges of places. Ids are scrambled places, so that they do not show the class. Parallel edges and self-loops occur, as in
Graph500.

    degree=16  features=64  classes=16  seed=0  signal=3  a=0.57  b=0.19  c=0.19
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SINGLE_LABEL
from hpcgnn.data.random_kernels import key_for, rmat_classes, rmat_edges
from hpcgnn.sources.base import SOURCES, SourceInfo
from hpcgnn.sources.spec import Spec
from hpcgnn.sources.synthetic_nodes import LARGEST_DEGREE, GeneratedSource, take_features

_EDGES, _SCRAMBLE = 1, 2  # numbers of these uses of a seed
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
        self._edge_key, self._scramble_key = key_for(seed, _EDGES), key_for(seed, _SCRAMBLE)
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
