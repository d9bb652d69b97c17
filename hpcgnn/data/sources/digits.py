"""``digits``: scikit-learn's 1,797 handwritten digits, a real data set that ships with it, as a graph of neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.data.sources.base import ArraySource
from hpcgnn.data.sources.spec import Spec

_NEIGHBOURS = 8
_GREYS = 16.0


def open_digits(spec: Spec, folder: Path) -> ArraySource:
    """Each image (64 grey values in 0..1) joined, both ways, to the 8 images with the nearest pixels."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    dst = _nearest(pixels.astype(np.int64)).ravel()
    src = np.repeat(np.arange(digit.size), _NEIGHBOURS)
    pairs = np.unique(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]), axis=1)
    return ArraySource(
        spec.text, digit.size, pairs, x=pixels / _GREYS, y=digit, default_split="random:0.6,0.2,0.2,0", seed=0
    )


def _nearest(pixels: np.ndarray) -> np.ndarray:
    """(n, 8) nearest other images. In integers and with ties by id, so that every machine makes the same graph."""
    squares = (pixels**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    return np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
