"""The random numbers of :mod:`hpcgnn.kernels.keyed` by torch's operations, for tensors of any device: the same numbers.

torch has no shifts of unsigned integers, so all are int64: of 64 bits, whose products wrap, or below 2**32.
"""

from __future__ import annotations

import torch

from hpcgnn.kernels import keyed

_MASK_32 = 2**32 - 1


def row_hashes(key: int, ids: torch.Tensor) -> torch.Tensor:
    """(n,) int64 of the same bits as :func:`hpcgnn.kernels.keyed.row_hashes`, of (n,) int64 ids."""
    return _mix64(_mix64(ids + _signed(keyed.GOLDEN_64)) ^ _signed(key))


def draws(hashes: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """int64 draws in [0, 2**32) for (row hash, column) pairs, broadcast against each other."""
    low, high = hashes & _MASK_32, _shifted(hashes, 32)
    return _mix32((low + columns.long() * int(keyed.GOLDEN_32)) & _MASK_32) ^ high


def _signed(bits: int) -> int:
    """64 bits as an int64 has them."""
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(v: torch.Tensor, by: int) -> torch.Tensor:
    """The shift to the right that brings zeros."""
    return (v >> by) & (2 ** (64 - by) - 1)


def _mix64(v: torch.Tensor) -> torch.Tensor:
    v = (v ^ _shifted(v, 30)) * _signed(0xBF58476D1CE4E5B9)
    v = (v ^ _shifted(v, 27)) * _signed(0x94D049BB133111EB)
    return v ^ _shifted(v, 31)


def _mix32(v: torch.Tensor) -> torch.Tensor:
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & _MASK_32
    v = ((v ^ (v >> 15)) * 0x846CA68B) & _MASK_32
    return v ^ (v >> 16)
