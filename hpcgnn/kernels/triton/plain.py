"""Rows as bfloat16 or float32 words of a wire buffer."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl

from hpcgnn.kernels.triton.words import load_words, store_words


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
    x,
    rows,
    buffer,
    payload_at,
    nonfinite,
    count,
    WIDTH: tl.constexpr,
    BYTES: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):
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
    buffer,
    payload_at,
    out,
    rows,
    nonfinite,
    count,
    WIDTH: tl.constexpr,
    BYTES: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):
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
