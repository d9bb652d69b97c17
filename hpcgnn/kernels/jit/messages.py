"""See :mod:`hpcgnn.kernels.messages`. The same bits as from the native kernels."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.kernels import packing
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.jit.common import draw32, on_torch_threads, row_hash
from hpcgnn.kernels.jit.spmm import spmm
from hpcgnn.kernels.messages import decode_and_add
from hpcgnn.kernels.packing import FRACTION_BITS, HALF, LARGEST, NAN, SMALLEST_SCALE, payload_bytes

_INFINITY = np.uint32(0x7F800000)


@on_torch_threads
def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> int:
    places = (buffer.numpy(), payload_at.numpy())
    if bits not in QUANTIZED_BITS:
        return _encode_words(x.view(torch.uint32).numpy(), rows.numpy(), bits == 16, *places)
    assert params_at is not None, "checked before"
    top = np.float32(2**bits - 1)
    codes = (*packing.places(x.shape[1], bits), *packing.counters(x.shape[1]))
    width = payload_bytes(x.shape[1], bits)
    rounding = (np.uint64(key or 0), key is None)
    return _encode(x.numpy(), rows.numpy(), *rounding, top, *codes, *places, width, params_at.numpy())


@njit(parallel=True, nogil=True, cache=True)
def _encode(x, rows, key, to_centres, top, byte, shift, counter, is_high, buffer, payload_at, num_bytes, params_at):
    not_finite = 0
    for i in numba.prange(rows.size):
        payload = buffer[payload_at[i] : payload_at[i] + num_bytes]
        zero, scale = quantize_row(x[rows[i]], rows[i], key, to_centres, top, byte, shift, counter, is_high, payload)
        _store16(buffer, params_at[i], zero)
        _store16(buffer, params_at[i] + 2, scale)
        not_finite += 1 if zero == NAN else 0
    return not_finite


@njit(parallel=True, nogil=True, cache=True)
def _encode_words(x, rows, is_bfloat16, buffer, payload_at):
    not_finite = 0
    for i in numba.prange(rows.size):
        row, at, is_finite = x[rows[i]], payload_at[i], True
        for column in range(row.size):
            is_finite &= row[column] & _INFINITY != _INFINITY
            if is_bfloat16:
                _store16(buffer, at + 2 * column, to_bfloat16(row[column]))
            else:
                _store16(buffer, at + 4 * column, row[column] & 0xFFFF)
                _store16(buffer, at + 4 * column + 2, row[column] >> 16)
        not_finite += 0 if is_finite else 1
    return not_finite


@on_torch_threads
def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor, accumulate: bool
) -> int:
    places = (buffer.numpy(), payload_at.numpy())
    if bits not in QUANTIZED_BITS:
        return _decode_words(*places, bits == 16, out.numpy(), rows.numpy(), accumulate)
    assert params_at is not None, "checked before"
    codes = (np.uint8(2**bits - 1), *packing.places(out.shape[1], bits))
    width = payload_bytes(out.shape[1], bits)
    return _decode(*places, width, params_at.numpy(), *codes, out.numpy(), rows.numpy(), accumulate)


@njit(parallel=True, nogil=True, cache=True)
def _decode(buffer, payload_at, num_bytes, params_at, top, byte, shift, out, rows, accumulate):
    not_finite = 0
    for i in numba.prange(rows.size):
        zero, scale = _load_bfloat16(buffer, params_at[i]), _load_bfloat16(buffer, params_at[i] + 2)
        payload = buffer[payload_at[i] : payload_at[i] + num_bytes]
        dequantize_row(payload, zero, scale, top, byte, shift, out[rows[i]], accumulate)
        not_finite += 0 if np.isfinite(zero) and np.isfinite(scale) else 1
    return not_finite


@njit(parallel=True, nogil=True, cache=True)
def _decode_words(buffer, payload_at, is_bfloat16, out, rows, accumulate):
    not_finite = 0
    for i in numba.prange(rows.size):
        row, at, is_finite = out[rows[i]], payload_at[i], True
        for column in range(row.size):
            value = _load_bfloat16(buffer, at + 2 * column) if is_bfloat16 else _load_float(buffer, at + 4 * column)
            is_finite &= np.isfinite(value)
            row[column] = row[column] + value if accumulate else value
        not_finite += 0 if is_finite else 1
    return not_finite


def spmm_rows(csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor) -> None:
    decode_and_add(decode_rows, spmm, csr, buffer, payload_at, params_at, bits, out)


# These functions go byte by byte, because a uint16 must not lie at an odd address.
@njit(nogil=True, cache=True)
def _store16(buffer, at, pattern):
    buffer[at] = pattern & 0xFF
    buffer[at + 1] = pattern >> 8


@njit(nogil=True, cache=True)
def _load16(buffer, at):
    return np.uint32(buffer[at]) | np.uint32(np.uint32(buffer[at + 1]) << np.uint32(8))


@njit(nogil=True, cache=True)
def _load_bfloat16(buffer, at):
    return np.uint32(_load16(buffer, at) << np.uint32(16)).view(np.float32)


@njit(nogil=True, cache=True)
def _load_float(buffer, at):
    return np.uint32(_load16(buffer, at) | np.uint32(_load16(buffer, at + 2) << np.uint32(16))).view(np.float32)


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
    """The smallest bfloat16 of which ``steps`` steps reach from low to high, at least SMALLEST_SCALE; 0 if high <= low."""
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


@on_torch_threads
def pack_bf16(x: Tensor, factor: Tensor | None, out: Tensor) -> None:
    x = x if factor is None else x * factor[:, None]
    _pack_bf16(x.view(torch.uint32).numpy().reshape(-1), out.view(torch.uint16).numpy().reshape(-1))


@njit(parallel=True, nogil=True, cache=True)
def _pack_bf16(patterns, out):
    for i in numba.prange(patterns.size):
        out[i] = to_bfloat16(patterns[i])


@on_torch_threads
def unpack_bf16(x: Tensor, out: Tensor) -> None:
    _unpack_bf16(x.view(torch.uint16).numpy().reshape(-1), out.view(torch.uint32).numpy().reshape(-1))


@njit(parallel=True, nogil=True, cache=True)
def _unpack_bf16(patterns, out):
    for i in numba.prange(patterns.size):
        out[i] = np.uint32(patterns[i]) << np.uint32(16)
