"""Random bits in numba: the same functions as :mod:`hpcgnn.kernels.keyed`, for one value at a time."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def mix64(v):
    """splitmix64's finaliser, of a uint64."""
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def mix32(v):
    """lowbias32, of a uint32."""
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D))
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(v ^ (v >> np.uint32(16)))


@numba.njit(nogil=True, cache=True)
def row_hash(key, row):
    """64 bits for one row (an original node id, say) under a key."""
    return mix64(key ^ mix64(np.uint64(row) + np.uint64(0x9E3779B97F4A7C15)))


@numba.njit(nogil=True, cache=True)
def draw32(low, high, counter):
    """32 bits for one counter of a row, from the halves of its hash."""
    return np.uint32(mix32(np.uint32(low + np.uint32(counter) * np.uint32(0x9E3779B9))) ^ high)
