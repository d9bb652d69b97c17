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
from hpcgnn.kernels.jit.quantize import dequantize_row, quantize_row, to_bfloat16
from hpcgnn.kernels.jit.spmm import spmm
from hpcgnn.kernels.jit.threads import on_torch_threads
from hpcgnn.kernels.messages import decode_and_add
from hpcgnn.kernels.packing import NAN, payload_bytes

_INFINITY = np.uint32(0x7F800000)


@on_torch_threads
def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> int:
    """Write row ``rows[i]`` of ``x`` (m, F) to its place in ``buffer``; return the number of rows that are not finite."""
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
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F), or add it; return the number of rows that are not
    finite."""
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
    """Add ``csr`` times the rows of ``buffer`` to ``out`` (R, F)."""
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
