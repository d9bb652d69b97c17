"""Labels and features of generated graphs: a point per class, and noise."""

from __future__ import annotations

import numpy as np

from hpcgnn.data.random_kernels import key_for, noisy_rows, normal_rows
from hpcgnn.data.sources.spec import Spec
from hpcgnn.errors import HpcgnnError

LARGEST_WIDTH = 2**31 - 1
LARGEST_DEGREE = float(2**31)

_CENTROIDS, _NOISE = 11, 12  # what a seed is used for


class ClassFeatures:
    """Row v is the point of v's class, at distance about ``signal`` from the origin, plus noise of deviation 1."""

    def __init__(self, classes: int, num_features: int, signal: float, seed: int) -> None:
        scale = np.float32(signal / np.sqrt(max(num_features, 1)))
        self._centroids = normal_rows(key_for(seed, _CENTROIDS), 0, max(classes, 1), num_features) * scale
        self._key = key_for(seed, _NOISE)

    def rows(self, first: int, classes: np.ndarray) -> np.ndarray:
        """(n, F) float32 for nodes ``first`` and on, whose classes (n,) int64 are given."""
        out = np.empty((classes.size, self._centroids.shape[1]), np.float32)
        noisy_rows(self._key, first, self._centroids, classes, out)
        return out


def take_features(spec: Spec, classes: int, seed: int) -> tuple[int, ClassFeatures]:
    """The options ``features`` (64) and ``signal`` (3) that all generators share."""
    num_features, signal = spec.take_int("features", 64), spec.take_float("signal", 3.0)
    if num_features > LARGEST_WIDTH:
        raise HpcgnnError(f"{spec.text}: features is at most {LARGEST_WIDTH}")
    return num_features, ClassFeatures(classes, num_features, signal, seed)
