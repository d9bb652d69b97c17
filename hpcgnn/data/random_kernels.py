"""Compiled generators whose random numbers are functions of a key and a counter, so that a graph is the same for any chunk size.

Every number is ``draw(key, counter)``, from a splitmix64 stream that can be entered anywhere. Only integer arithmetic and single
float32 roundings are used, so that a graph has the same bytes on every machine. All compiled functions are in this file, because
numba's cache does not notice changes in other files.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_COLUMNS = 23  # number of this use of a seed
# The sum of four uniform 16-bit numbers is a bell curve (its mean and standard deviation are below) up to 3.5 deviations. It
# needs no logarithm or cosine, whose last bits differ between machines.
_BELL_MEAN = np.float32(2 * 65535)
_BELL_SCALE = np.float32(1 / np.sqrt(4 * (65536.0**2 - 1) / 12))


@njit(inline="always")
def _mix(v):
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


@njit(inline="always")
def _draw(key, counter):
    return _mix(key + (counter + np.uint64(1)) * _GOLDEN)


@njit(inline="always")
def _inverse_odd(odd):
    inverse = odd  # the inverse in its lowest 3 bits; each Newton step doubles the number of right bits
    for _ in range(5):
        inverse *= np.uint64(2) - odd * inverse
    return inverse


@njit(inline="always")
def _scramble(v, bits, key):
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    half = np.uint64((bits + 1) // 2)
    for turn in range(3):
        v = (v * (_draw(key, np.uint64(2 * turn)) | np.uint64(1)) + _draw(key, np.uint64(2 * turn + 1))) & mask
        v ^= v >> half
    return v


@njit(inline="always")
def _unscramble(v, bits, key):
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    half = np.uint64((bits + 1) // 2)
    for back in range(3):
        turn = 2 - back
        v ^= v >> half  # its own inverse, because ``half`` is at least half of the bits
        odd = _draw(key, np.uint64(2 * turn)) | np.uint64(1)
        v = ((v - _draw(key, np.uint64(2 * turn + 1))) * _inverse_odd(odd)) & mask
    return v


@njit(cache=True, nogil=True)
def derive_key(seed, stream):
    """A uint64 key for the use number ``stream`` of a uint64 ``seed``."""
    return _mix(_mix(seed + _GOLDEN) ^ (stream * _GOLDEN + np.uint64(1)))


@njit(cache=True, nogil=True)
def draws(key, first, out):
    """Fill ``out`` (n,) uint64 with the draws for counters from ``first`` on."""
    for i in range(out.size):
        out[i] = _draw(key, np.uint64(first + i))


@njit(cache=True, nogil=True)
def rmat_edges(key, scramble_key, scale, thresholds, first, src, dst):
    """Write the edges from ``first`` on of an R-MAT graph with 2**scale nodes into ``src`` and ``dst`` (n,) int64, with
    scrambled ids, which do not show a node's place in the adjacency matrix. thresholds: (3,) uint64; on each level, a draw
    of 16 bits below the first goes to quadrant (0, 0), below the second to (0, 1), below the third to (1, 0), and else to
    (1, 1)."""
    words = (scale + 3) // 4
    for i in range(src.size):
        source, target, word = np.uint64(0), np.uint64(0), np.uint64(0)
        for level in range(scale):
            if level % 4 == 0:
                word = _draw(key, np.uint64((first + i) * words + level // 4))
            r = word & np.uint64(0xFFFF)
            word >>= np.uint64(16)
            down = r >= thresholds[1]
            right = (thresholds[0] <= r < thresholds[1]) or r >= thresholds[2]
            source = (source << np.uint64(1)) | np.uint64(down)
            target = (target << np.uint64(1)) | np.uint64(right)
        src[i] = np.int64(_scramble(source, scale, scramble_key))
        dst[i] = np.int64(_scramble(target, scale, scramble_key))


@njit(cache=True, nogil=True)
def rmat_classes(scramble_key, scale, classes, first, out):
    """Write the classes of nodes from ``first`` on into ``out`` (n,) int64. They are equal ranges of the ids before
    scrambling."""
    for i in range(out.size):
        place = np.int64(_unscramble(np.uint64(first + i), scale, scramble_key))
        out[i] = (place * classes) >> scale


@njit(cache=True, nogil=True)
def sbm_edges(key, nodes, blocks, within, first, src, dst):
    """Write the edges from ``first`` on of a block model into ``src`` and ``dst`` (n,) int64; edge 2k+1 is the reverse of
    2k. Node v is in block v % blocks, and so is the other end of an edge if a draw of 32 bits is below ``within``."""
    for i in range(src.size):
        pair = np.uint64((first + i) // 2) * np.uint64(4)
        a = np.int64(_draw(key, pair) % np.uint64(nodes))
        block = a % blocks
        pick = _draw(key, pair + np.uint64(2))
        if (_draw(key, pair + np.uint64(1)) >> np.uint64(32)) < within or blocks == 1:
            size = (nodes - block + blocks - 1) // blocks
            member = (a // blocks + 1 + np.int64(pick % np.uint64(size - 1))) % size  # never a itself
        else:
            block = (block + 1 + np.int64(pick % np.uint64(blocks - 1))) % blocks
            size = (nodes - block + blocks - 1) // blocks
            member = np.int64(_draw(key, pair + np.uint64(3)) % np.uint64(size))
        b = member * blocks + block
        if (first + i) % 2:
            a, b = b, a
        src[i], dst[i] = a, b


@njit(cache=True, nogil=True)
def noisy_rows(key, first, centroids, classes, out):
    """Write the rows of nodes from ``first`` on into ``out`` (n, F) float32: the row of ``centroids`` (C, F) float32 of each
    node's class (n,) int64, plus noise of variance 1."""
    width = out.shape[1]
    for i in range(out.shape[0]):
        for j in range(width):
            word = _draw(key, np.uint64((first + i) * width + j))
            total = np.int64(0)
            for _ in range(4):
                total += np.int64(word & np.uint64(0xFFFF))
                word >>= np.uint64(16)
            noise = (np.float32(total) - _BELL_MEAN) * _BELL_SCALE
            out[i, j] = centroids[classes[i], j] + noise


@njit(cache=True, nogil=True)
def asymmetry(src, dst, weight_bits):
    """The sum of hash(s, d, w) - hash(d, s, w) modulo 2**64 over edges; sums of parts of them can be added up. For a
    symmetric set of edges it is 0, for any other with a probability of 2**-64. weight_bits: (n,) uint32 or empty."""
    total = np.uint64(0)
    for i in range(src.size):
        s, d = _mix(np.uint64(src[i]) + _GOLDEN), _mix(np.uint64(dst[i]) + _GOLDEN)
        w = np.uint64(weight_bits[i]) if weight_bits.size else np.uint64(0)
        total += _mix(s * np.uint64(3) + d + w) - _mix(d * np.uint64(3) + s + w)
    return total


@njit(cache=True, nogil=True)
def sum_of_edges(ids, indptr, sources, value_bits):
    """The sum modulo 2**64 of a hash of (source, destination, values) over edges. ids: (n,) int64 of the destinations.
    indptr: (n + 1,) int64 from 0, not beyond ``sources`` (m,) int64. value_bits: (m,) uint32 or uint64, or empty."""
    total = np.uint64(0)
    for i in range(ids.size):
        d = _mix(np.uint64(ids[i]) + _GOLDEN)
        for k in range(indptr[i], indptr[i + 1]):
            w = np.uint64(value_bits[k]) if value_bits.size else np.uint64(0)
            total += _mix(_mix(np.uint64(sources[k]) + _GOLDEN) * np.uint64(3) + d + w)
    return total


def column_keys(count: int) -> np.ndarray:
    """(count,) uint64 odd keys of the columns of :func:`sum_of_rows`; those of fewer columns are the first of them."""
    keys = np.empty(count, np.uint64)
    draws(key_for(0, _COLUMNS), 0, keys)
    return keys | np.uint64(1)


@njit(cache=True, nogil=True)
def sum_of_rows(ids, rows, column_keys):
    """The sum modulo 2**64 of a hash of (id, row) over rows (n, C) uint32 of nodes ``ids`` (n,) int64; rows of zeros count
    0. column_keys: (C,) uint64, odd."""
    total = np.uint64(0)
    for i in range(ids.size):
        row = np.uint64(0)
        for j in range(column_keys.size):
            row += np.uint64(rows[i, j]) * column_keys[j]
        if row:
            total += _mix(_mix(np.uint64(ids[i]) + _GOLDEN) * np.uint64(3) + row)
    return total


@njit(cache=True, nogil=True)
def sum_of_sparse_rows(ids, indptr, columns, values, column_keys):
    """As :func:`sum_of_rows`, for rows in CSR: ``indptr`` (n + 1,) int64 from 0, not beyond ``columns`` and ``values`` (m,).
    Columns that ``column_keys`` has not are left out, as in a file that is being repaired."""
    total = np.uint64(0)
    for i in range(ids.size):
        row = np.uint64(0)
        for k in range(indptr[i], indptr[i + 1]):
            if 0 <= columns[k] < column_keys.size:
                row += np.uint64(values[k]) * column_keys[columns[k]]
        if row:
            total += _mix(_mix(np.uint64(ids[i]) + _GOLDEN) * np.uint64(3) + row)
    return total


def key_for(seed: int, stream: int) -> np.uint64:
    """The key for the use number ``stream`` of a user's ``seed`` (any integer)."""
    return np.uint64(derive_key(np.uint64(seed % 2**64), np.uint64(stream)))


def normal_rows(key: np.uint64, first: int, rows: int, columns: int) -> np.ndarray:
    """(rows, columns) float32 bell-shaped noise of mean 0 and variance 1, for the rows from ``first`` on."""
    out = np.empty((rows, columns), np.float32)
    noisy_rows(key, first, np.zeros((1, columns), np.float32), np.zeros(rows, np.int64), out)
    return out
