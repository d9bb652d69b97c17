"""The place of each code in a row's payload, and the random bits that round it; native/quantize.h does the same in registers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hpcgnn.kernels import keyed

Count = TypeVar("Count", int, np.ndarray)

PARAMS_BYTES = 4  # zero-point and scale of a quantized row
FRACTION_BITS = 17  # bits of a fixed-point code after the point: 16 random bits, and the bit of a half
HALF = 2 ** (FRACTION_BITS - 1)  # half a step: added in place of noise, it rounds to the nearest code
LARGEST = np.float32(2.0**126)  # larger values count as this, so that no difference of two values overflows
SMALLEST_SCALE = np.float32(2.0**-110)  # 2 ** FRACTION_BITS divided by it is still a finite float32
NAN = np.uint16(0x7FC0)  # NaN as the bits of a bfloat16
GROUP = 16  # consecutive columns that take the same half, low or high, of their draws


def payload_bytes(num_columns: Count, bits: Count) -> Count:
    """Bytes of one row's payload, or of each row's; ``bits`` is one of MESSAGE_BITS."""
    return (num_columns * bits + 7) // 8


def places(num_columns: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(F,) int64 number of the byte, and (F,) uint8 shift within it, of each column's code in its row's payload.

    The codes of 16 * (8 / bits) columns fill 16 bytes: byte k holds columns k, 16 + k, 32 + k, ... from its low bits up.
    A last, partial block of n columns has ceil(n * bits / 8) bytes, and its columns follow at this distance instead of 16.
    """
    slots, columns = 8 // bits, np.arange(num_columns)
    block = columns // (GROUP * slots)
    within = columns - block * GROUP * slots
    rest = num_columns % (GROUP * slots)
    is_last = block == num_columns // (GROUP * slots)
    stride = np.where(is_last, max(payload_bytes(rest, bits), 1), GROUP)
    return block * GROUP + within % stride, (within // stride * bits).astype(np.uint8)


def counters(num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(F,) uint32 counter of each column's draw, and (F,) bool whether the column takes the draw's high half.

    One draw serves two columns, which are 16 apart.
    """
    columns = np.arange(num_columns)
    counter = columns // (2 * GROUP) * GROUP + columns % GROUP
    return counter.astype(np.uint32), columns // GROUP % 2 == 1


def noise(key: int, numbers: np.ndarray, num_columns: int) -> np.ndarray:
    """(n, F) int32 noise for rows with these (n,) ``numbers``, in fixed point: 16 random bits, plus a half of the last one.

    These are odd numbers below ``2 ** FRACTION_BITS``.
    """
    counter, is_high = counters(num_columns)
    draws = keyed.draws(keyed.row_hashes(key, numbers)[:, None], counter[None, :])
    halves = np.where(is_high, draws >> np.uint32(16), draws & np.uint32(0xFFFF))
    return (halves * 2 + 1).astype(np.int32)
