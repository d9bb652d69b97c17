"""Random numbers that are a function of their use (a key, a row, a column): there is no generator state, and they are the same
for any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hpcgnn.base.errors import WrongValueError, quoted

GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = np.uint32(0x9E3779B9)
_MASK_64 = 2**64 - 1
_MASK_32 = 2**32 - 1
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def check_key(name: str, key: int | None) -> None:
    """Raise ValueError unless ``key`` is in [0, 2**64) or None."""
    if key is not None and not 0 <= key < 2**64:
        raise WrongValueError(f"{name} must lie in [0, 2**64) or be None, not {quoted(key)}")


def derive_key(*words: int) -> int:
    """A 64-bit key from integers such as (seed, epoch, layer); order matters.

    It is computed in Python's integers, which are 20 times as fast as numpy's scalars: each message has a key of its own.
    """
    key = 0
    for word in words:
        v = (int(word) + GOLDEN_64) & _MASK_64
        for other in (key, 0):
            v = ((v ^ (v >> 30)) * _MULTIPLIERS[0]) & _MASK_64
            v = ((v ^ (v >> 27)) * _MULTIPLIERS[1]) & _MASK_64
            v ^= (v >> 31) ^ other
        key = v
    return key


def row_hashes(key: int, ids: np.ndarray) -> np.ndarray:
    """(n,) uint64 hash of each id, such as an original node id, under ``key``."""
    return _mix64(np.uint64(key) ^ splitmix64(ids.astype(np.uint64)))


def splitmix64(values: Any) -> Any:
    """The first splitmix64 output for each uint64 state: every output bit depends on every input bit."""
    with np.errstate(over="ignore"):
        return _mix64(values + np.uint64(GOLDEN_64))


def draws(hashes: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """uint32 draws for (row hash, column) pairs, broadcast against each other."""
    low, high = hashes.astype(np.uint32), (hashes >> np.uint64(32)).astype(np.uint32)
    with np.errstate(over="ignore"):
        return _mix32(low + columns.astype(np.uint32) * GOLDEN_32) ^ high


def threshold(probability: float) -> int:
    """The number below which a draw falls with ``probability``."""
    return min(int(probability * 2**32), 2**32 - 1)


def _mix64(v: Any) -> Any:
    with np.errstate(over="ignore"):
        v = (v ^ (v >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
        v = (v ^ (v >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
        return v ^ (v >> np.uint64(31))


def _mix32(v: np.ndarray) -> np.ndarray:
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D)
    v = (v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B)
    return v ^ (v >> np.uint32(16))


# -- tensors of any device ---------------------------------------------------------------------------------------------

# torch cannot shift unsigned integers, so all tensors are int64: they hold 64 bits, whose products wrap, or numbers below 2**32.


def device_row_hashes(key: int, ids: Tensor) -> Tensor:
    """(n,) int64 with the bits of :func:`row_hashes`, for ``ids`` (n,) int64."""
    return _device_mix64(_device_mix64(ids + _signed(GOLDEN_64)) ^ _signed(key))


def device_draws(hashes: Tensor, columns: Tensor) -> Tensor:
    """int64 draws in [0, 2**32) for (row hash, column) pairs, broadcast against each other."""
    low, high = hashes & _MASK_32, _shifted(hashes, 32)
    return _device_mix32((low + columns.long() * int(GOLDEN_32)) & _MASK_32) ^ high


def _signed(bits: int) -> int:
    """The int64 number with these 64 bits."""
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(v: Tensor, by: int) -> Tensor:
    """``v`` shifted to the right, filled with zeros."""
    return (v >> by) & (2 ** (64 - by) - 1)


def _device_mix64(v: Tensor) -> Tensor:
    v = (v ^ _shifted(v, 30)) * _signed(_MULTIPLIERS[0])
    v = (v ^ _shifted(v, 27)) * _signed(_MULTIPLIERS[1])
    return v ^ _shifted(v, 31)


def _device_mix32(v: Tensor) -> Tensor:
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & _MASK_32
    v = ((v ^ (v >> 15)) * 0x846CA68B) & _MASK_32
    return v ^ (v >> 16)
