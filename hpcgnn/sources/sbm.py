"""``sbm:nodes=N,blocks=B,degree=D,...``: an undirected stochastic block model, where a node's class is its block.

An edge joins a random node to another node of its block with probability ``homophily``, and else to a node of another block.
Node v is in block v mod B. Every edge is stored in both directions, and a pair may have several edges.

    blocks=10  degree=16 (mean in-degree)  homophily=0.8  features=64  seed=0  signal=3
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SINGLE_LABEL
from hpcgnn.data.random_kernels import key_for, sbm_edges
from hpcgnn.sources.base import SOURCES, SourceInfo
from hpcgnn.sources.spec import Spec
from hpcgnn.sources.synthetic_nodes import LARGEST_DEGREE, GeneratedSource, take_features

_EDGES = 3  # number of this use of a seed


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
        self._key = key_for(seed, _EDGES)
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
