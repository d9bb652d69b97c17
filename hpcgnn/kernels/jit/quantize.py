"""Quantization of the rows of a wire buffer, see :mod:`hpcgnn.kernels.messages`. The bits are those of the native kernels."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.jit.keyed import draw32, row_hash
from hpcgnn.kernels.packing import FRACTION_BITS, HALF, LARGEST, NAN, SMALLEST_SCALE

_ONE = np.float32(2**FRACTION_BITS)
_UPPER_HALF = np.uint32(0xFFFF0000)
_ROUND_UP = np.uint32(0xFFFF)
_ZERO = np.float32(0)
_NAN_32 = np.float32(np.nan)


@njit(nogil=True, cache=True)
def quantize_row(x, number, key, to_centres, top, byte, shift, counter, is_high, payload):
    """Write the codes of row ``number`` to ``payload``; return its zero-point and scale as bits of bfloat16, NAN if not finite.

    ``to_centres``: round to the centres of cells, without noise; ``key`` is then ignored.
    """
    payload[:] = 0
    smallest, largest = _range(x)
    if not np.isfinite(smallest):
        return NAN, NAN
    zero, scale = _parameters(smallest, largest, top, to_centres)
    per_step = _ONE / scale if scale > _ZERO else _ZERO
    hashed = row_hash(key, number)
    low, high = np.uint32(hashed), np.uint32(hashed >> np.uint64(32))
    for column in range(x.size):
        noise = np.int64(HALF) if to_centres else _noise(low, high, counter[column], is_high[column])
        steps = min(max((x[column] - zero) * per_step, _ZERO), top * _ONE)
        code = (np.int64(steps) + noise) >> FRACTION_BITS
        payload[byte[column]] |= np.uint8(code << shift[column])
    return _upper_half(zero), _upper_half(scale)


@njit(nogil=True, cache=True)
def _noise(low, high, counter, is_high):
    """The noise of a value in fixed point: 16 random bits, plus a half of the last one."""
    drawn = draw32(low, high, counter)
    half = drawn >> np.uint32(16) if is_high else drawn & np.uint32(0xFFFF)
    return 2 * np.int64(half) + 1


@njit(nogil=True, cache=True)
def _upper_half(value):
    return np.uint16(np.float32(value).view(np.uint32) >> np.uint32(16))


@njit(nogil=True, cache=True)
def _range(row):
    """The smallest and the largest value of a row; NaN if a value is not finite."""
    if row.size == 0:
        return _ZERO, _ZERO
    smallest = largest = row[0]
    for value in row:
        if not np.isfinite(value):
            return _NAN_32, _NAN_32
        smallest, largest = min(smallest, value), max(largest, value)
    return smallest, largest


@njit(nogil=True, cache=True)
def _parameters(smallest, largest, top, to_centres):
    """Zero-point and scale of a row, as float32 numbers that bfloat16 can hold."""
    smallest = np.float32(min(max(smallest, -LARGEST), LARGEST) + _ZERO)  # -0 becomes 0
    largest = min(max(largest, -LARGEST), LARGEST)
    if to_centres:
        scale = _scale(smallest, largest, top + np.float32(1))
        centre = np.float32(smallest + scale / np.float32(2))
        return np.uint32(np.uint32(to_bfloat16(centre.view(np.uint32))) << np.uint32(16)).view(np.float32), scale
    pattern = smallest.view(np.uint32)
    zero = np.uint32((pattern + _ROUND_UP if smallest < _ZERO else pattern) & _UPPER_HALF).view(np.float32)
    return zero, _scale(zero, largest, top)


@njit(nogil=True, cache=True)
def _scale(low, high, steps):
    """The smallest bfloat16 of which ``steps`` steps reach from low to high, at least SMALLEST_SCALE; 0 if high is not above
    low."""
    if not high > low:
        return _ZERO
    scale = np.float32(max((high - low) / steps, SMALLEST_SCALE))
    return np.uint32((scale.view(np.uint32) + _ROUND_UP) & _UPPER_HALF).view(np.float32)


@njit(nogil=True, cache=True)
def dequantize_row(payload, zero, scale, top, byte, shift, out, accumulate):
    """Write zero-point + code * scale to ``out``, or add it."""
    for column in range(out.size):
        value = zero + np.float32((payload[byte[column]] >> shift[column]) & top) * scale
        out[column] = out[column] + value if accumulate else value


@njit(nogil=True, cache=True)
def to_bfloat16(pattern):
    """The bits of a float32, rounded to those of the nearest bfloat16, ties to even; every NaN becomes NAN."""
    wide = np.int64(pattern)
    if wide & 0x7FFFFFFF > 0x7F800000:
        return NAN
    return np.uint16((wide + 0x7FFF + (wide >> 16 & 1)) >> 16)
