"""Random bits in numba: the same functions as :mod:`hpcgnn.kernels.keyed`, for one value at a time."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit


@njit(nogil=True, cache=True)
def mix64(v):
    """The finaliser of splitmix64 for a uint64."""
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


@njit(nogil=True, cache=True)
def mix32(v):
    """The hash function lowbias32 of a uint32."""
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D))
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(v ^ (v >> np.uint32(16)))


@njit(nogil=True, cache=True)
def row_hash(key, row):
    """The 64-bit hash of one row's number, such as an original node id, under a key."""
    return mix64(key ^ mix64(np.uint64(row) + np.uint64(0x9E3779B97F4A7C15)))


@njit(nogil=True, cache=True)
def draw32(low, high, counter):
    """The 32-bit draw for one counter of a row, from the halves of the row's hash."""
    return np.uint32(mix32(np.uint32(low + np.uint32(counter) * np.uint32(0x9E3779B9))) ^ high)
