"""The random numbers of :mod:`hpcgnn.kernels.keyed`, for kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from hpcgnn.kernels.keyed import GOLDEN_32, GOLDEN_64

_GOLDEN_64 = tl.constexpr(GOLDEN_64)
_GOLDEN_32 = tl.constexpr(int(GOLDEN_32))


@triton.jit
def mix64(v):
    """The finaliser of splitmix64 for uint64 ``v``."""
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9
    v = (v ^ (v >> 27)) * 0x94D049BB133111EB
    return v ^ (v >> 31)


@triton.jit
def row_hash(key, ids):
    """The low and the high uint32 half of the hash of each int64 id under a uint64 key."""
    v = mix64(mix64(ids.to(tl.uint64) + _GOLDEN_64) ^ key)
    return v.to(tl.uint32), (v >> 32).to(tl.uint32)


@triton.jit
def draw(low, high, counter):
    """A uint32 draw for each counter (integers below 2**32) of a row, from the halves of its hash."""
    v = counter.to(tl.uint32) * _GOLDEN_32 + low
    v = (v ^ (v >> 16)) * 0x7FEB352D  # lowbias32
    v = (v ^ (v >> 15)) * 0x846CA68B
    return v ^ (v >> 16) ^ high
