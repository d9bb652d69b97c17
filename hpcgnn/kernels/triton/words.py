"""Loads and stores of words at any byte of a buffer, as wide as the alignment allows."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hpcgnn.kernels.triton.launch import WARP, launch, rows_of_tile

MOST = 16  # bytes: the widest access of one thread


_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # the version and the alignment of each tensor of offsets


def alignment_of(offsets: Tensor, buffer: Tensor) -> int:
    """The largest power of two, at most :data:`MOST`, that divides the addresses of ``offsets`` (n,) int64 in ``buffer``.

    That of ``offsets`` is computed once, because reading it waits for the device, and again if they were written to since.
    """
    known = _known.get(offsets)
    if known is None or known[0] != offsets._version:
        known = offsets._version, _alignment(offsets)
        _known[offsets] = known
    begin = buffer.data_ptr() | MOST
    return min(known[1], begin & -begin)


def _alignment(offsets: Tensor) -> int:
    if offsets.numel() == 0:
        return MOST
    either = offsets | MOST
    return int((either & -either).min())


@triton.jit
def store_words(to, column, words, mask, BYTES: tl.constexpr, ALIGNMENT: tl.constexpr):
    """Write the low BYTES bytes of uint32 ``words`` as word number ``column`` after the byte pointers ``to``."""
    if BYTES == 4 and ALIGNMENT % 4 == 0:
        tl.store(to.to(tl.pointer_type(tl.uint32)) + column, words, mask=mask)
    elif BYTES == 2 and ALIGNMENT % 2 == 0:
        tl.store(to.to(tl.pointer_type(tl.uint16)) + column, words.to(tl.uint16), mask=mask)
    else:
        for byte in tl.static_range(BYTES):
            tl.store(to + (column * BYTES + byte), (words >> 8 * byte).to(tl.uint8), mask=mask)


@triton.jit
def load_words(start, column, mask, BYTES: tl.constexpr, ALIGNMENT: tl.constexpr):
    """Word number ``column``, of BYTES bytes, after the byte pointers ``start``, as uint32; 0 outside ``mask``."""
    if BYTES == 4 and ALIGNMENT % 4 == 0:
        words = tl.load(start.to(tl.pointer_type(tl.uint32)) + column, mask=mask, other=0)
    elif BYTES == 2 and ALIGNMENT % 2 == 0:
        words = tl.load(start.to(tl.pointer_type(tl.uint16)) + column, mask=mask, other=0).to(tl.uint32)
    else:
        words = tl.load(start + column * BYTES, mask=mask, other=0).to(tl.uint32)
        for byte in tl.static_range(1, BYTES):
            words |= tl.load(start + (column * BYTES + byte), mask=mask, other=0).to(tl.uint32) << 8 * byte
    return words


@triton.jit
def to_bfloat16(pattern):
    """The bits of the nearest bfloat16, in the low half, for uint32 bits of floats; ties to even, every NaN becomes 0x7FC0."""
    nearest = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
    return tl.where((pattern & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest)


@triton.jit
def _count_not_finite(pattern, here):
    """The number of rows with a NaN or an infinity, from uint32 bits of floats (rows, columns)."""
    bad = ((pattern & 0x7F800000) == 0x7F800000).to(tl.int32)
    return tl.sum(tl.where(here, tl.max(bad, axis=1), 0), axis=0)


@triton.jit(do_not_specialize=["count"])
def encode_words(
    x, rows, buffer, payload_at, nonfinite, count,
    WIDTH: tl.constexpr, BYTES: tl.constexpr, ALIGNMENT: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write ROWS rows of ``x`` as words of BYTES bytes, and the number of those not finite to ``nonfinite[program]``."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = i < count
    column = tl.arange(0, PADDED)[None, :]
    mask = here[:, None] & (column < WIDTH)
    start = x.to(tl.pointer_type(tl.uint32)) + (tl.load(rows + i, mask=here, other=0) * WIDTH)[:, None]
    pattern = tl.load(start + column, mask=mask, other=0)
    words = pattern
    if BYTES == 2:
        words = to_bfloat16(pattern)
    to = buffer + tl.multiple_of(tl.load(payload_at + i, mask=here, other=0), ALIGNMENT)[:, None]
    store_words(to, column, words, mask, BYTES, ALIGNMENT)
    tl.store(nonfinite + tl.program_id(0), _count_not_finite(pattern, here))


@triton.jit(do_not_specialize=["count"])
def decode_words(
    buffer, payload_at, out, rows, nonfinite, count,
    WIDTH: tl.constexpr, BYTES: tl.constexpr, ACCUMULATE: tl.constexpr, ALIGNMENT: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Write ROWS rows of ``buffer`` to rows of ``out``, or add them; see :func:`encode_words`."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = i < count
    column = tl.arange(0, PADDED)[None, :]
    mask = here[:, None] & (column < WIDTH)
    start = buffer + tl.multiple_of(tl.load(payload_at + i, mask=here, other=0), ALIGNMENT)[:, None]
    to = out + (tl.load(rows + i, mask=here, other=0) * WIDTH)[:, None]
    # A thread loads exactly the four words that it stores as floats, so that no word moves between threads.
    by_four = tl.max_contiguous(tl.arange(0, PADDED), 4)[None, :]
    pattern = load_words(start, by_four, mask, BYTES, ALIGNMENT)
    if BYTES == 2:
        pattern = pattern << 16
    value = pattern.to(tl.float32, bitcast=True)
    if ACCUMULATE:
        value = tl.load(to + column, mask=mask, other=0.0) + value
    tl.store(to + column, value, mask=mask)
    tl.store(nonfinite + tl.program_id(0), _count_not_finite(pattern, here))


def pack_bf16(x: Tensor, factor: Tensor | None, out: Tensor) -> None:
    x = x if factor is None else x * factor[:, None]
    _launch(_pack, x.view(torch.int32), out.view(torch.int16))


def unpack_bf16(x: Tensor, out: Tensor) -> None:
    _launch(_unpack, x.view(torch.int16), out.view(torch.int32))


def _launch(kernel: Any, x: Tensor, out: Tensor) -> None:
    values = rows_of_tile(x.numel(), 1, 4 * WARP)
    launch(kernel, triton.cdiv(x.numel(), values), x, out, x.numel(), VALUES=values)


@triton.jit(do_not_specialize=["count"])
def _pack(x, out, count, VALUES: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    if tl.program_id(0).to(tl.int64) * VALUES + VALUES <= count:  # without a mask, loads and stores have 16 bytes
        pattern = tl.load(x + at).to(tl.uint32, bitcast=True)
        tl.store(out + at, to_bfloat16(pattern).to(tl.int16))
    else:
        pattern = tl.load(x + at, mask=at < count, other=0).to(tl.uint32, bitcast=True)
        tl.store(out + at, to_bfloat16(pattern).to(tl.int16), mask=at < count)


@triton.jit(do_not_specialize=["count"])
def _unpack(x, out, count, VALUES: tl.constexpr):
    # A thread loads exactly the four values that it stores, so that no value moves between threads.
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.max_contiguous(tl.arange(0, VALUES), 4)
    if tl.program_id(0).to(tl.int64) * VALUES + VALUES <= count:
        tl.store(out + at, tl.load(x + at).to(tl.int32) << 16)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < count, other=0).to(tl.int32) << 16, mask=at < count)
