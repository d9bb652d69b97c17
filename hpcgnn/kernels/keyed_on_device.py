"""The random numbers of :mod:`hpcgnn.kernels.keyed`, computed by torch's operations for tensors of any device.

torch cannot shift unsigned integers, so all tensors are int64. They hold 64 bits, whose products wrap, or numbers below 2**32.
"""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels import keyed

_MASK_32 = 2**32 - 1


def row_hashes(key: int, ids: Tensor) -> Tensor:
    """(n,) int64 with the bits of :func:`hpcgnn.kernels.keyed.row_hashes`, for ``ids`` (n,) int64."""
    return _mix64(_mix64(ids + _signed(keyed.GOLDEN_64)) ^ _signed(key))


def draws(hashes: Tensor, columns: Tensor) -> Tensor:
    """int64 draws in [0, 2**32) for (row hash, column) pairs, broadcast against each other."""
    low, high = hashes & _MASK_32, _shifted(hashes, 32)
    return _mix32((low + columns.long() * int(keyed.GOLDEN_32)) & _MASK_32) ^ high


def _signed(bits: int) -> int:
    """The int64 number with these 64 bits."""
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(v: Tensor, by: int) -> Tensor:
    """``v`` shifted to the right, filled with zeros."""
    return (v >> by) & (2 ** (64 - by) - 1)


def _mix64(v: Tensor) -> Tensor:
    v = (v ^ _shifted(v, 30)) * _signed(0xBF58476D1CE4E5B9)
    v = (v ^ _shifted(v, 27)) * _signed(0x94D049BB133111EB)
    return v ^ _shifted(v, 31)


def _mix32(v: Tensor) -> Tensor:
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & _MASK_32
    v = ((v ^ (v >> 15)) * 0x846CA68B) & _MASK_32
    return v ^ (v >> 16)
