"""``digits``: the 1,797 handwritten digits that scikit-learn contains, a real data set, as a graph of nearest neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.sources.base import SOURCES, ArraySource
from hpcgnn.sources.spec import Spec

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
