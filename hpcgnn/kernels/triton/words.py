"""Loads and stores of words at any byte of a buffer, as wide as the alignment allows; alignments are looked up once."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

MOST = 16  # bytes: the widest access of one thread


class Alignments:
    """The alignment of each tensor of offsets seen so far. It is computed once, because reading it waits for the device.

    An alignment is kept as long as its tensor lives, and computed again if the tensor was written to since.
    """

    def __init__(self) -> None:
        self._found: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def of(self, offsets: Tensor, buffer: Tensor) -> int:
        """The largest power of two, at most :data:`MOST`, that divides the addresses of ``offsets`` (n,) int64 in ``buffer``."""
        known = self._found.get(offsets)
        if known is None or known[0] != offsets._version:
            known = offsets._version, _alignment(offsets)
            self._found[offsets] = known
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
