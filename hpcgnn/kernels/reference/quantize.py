"""Quantization of the rows of a wire buffer, see :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpcgnn.kernels import packing
from hpcgnn.kernels.packing import LARGEST, NAN, SMALLEST_SCALE


def quantize(x: Tensor, numbers: np.ndarray, bits: int, key: int | None, payload: Tensor, params: Tensor) -> None:
    """Write the codes of ``x`` (n, F) to ``payload`` and their zero-points and scales to ``params``.

    The noise of a row depends on its number in ``numbers`` (n,) int64. Without a key, values are rounded to the centres of cells.
    """
    top, one = 2**bits - 1, np.float32(2**packing.FRACTION_BITS)
    values = x.numpy()
    is_finite = np.isfinite(values).all(axis=1)
    values = np.where(is_finite[:, None], values, np.float32(0))
    zero, scale = _parameters(values, bits, to_centres=key is None)
    per_step = np.divide(one, scale, out=np.zeros_like(scale), where=scale > 0)
    with np.errstate(over="ignore"):  # values beyond LARGEST may overflow; the result is clamped
        steps = ((values - zero[:, None]) * per_step[:, None]).clip(0, one * np.float32(top))
    noise = packing.HALF if key is None else packing.noise(key, numbers, values.shape[1])
    codes = ((steps.astype(np.int32) + noise) >> packing.FRACTION_BITS).astype(np.uint8)
    codes[~is_finite] = 0
    byte, shift = packing.places(values.shape[1], bits)
    packed = payload.numpy()
    packed[:] = 0
    for one_shift in range(0, 8, bits):  # no two columns with the same shift share a byte
        columns = np.flatnonzero(shift == one_shift)
        packed[:, byte[columns]] |= codes[:, columns] << np.uint8(one_shift)
    patterns = params.view(torch.uint16).numpy()
    patterns[:] = np.stack([zero, scale], axis=1).view(np.uint32) >> np.uint32(16)
    patterns[~is_finite] = NAN


def _parameters(values: np.ndarray, bits: int, to_centres: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n,) zero-points and scales of finite rows, as float32 numbers that bfloat16 can hold."""
    if values.shape[1] == 0:
        return np.zeros(values.shape[0], np.float32), np.zeros(values.shape[0], np.float32)
    smallest = values.min(axis=1).clip(-LARGEST, LARGEST) + np.float32(0)  # -0 becomes 0
    largest = values.max(axis=1).clip(-LARGEST, LARGEST)
    if to_centres:
        scale = _scale(smallest, largest, 2**bits)
        pattern = (smallest + scale / np.float32(2)).view(np.uint32)
        return _upper_half(
            pattern + np.uint32(0x7FFF) + (pattern >> np.uint32(16) & np.uint32(1))
        ), scale  # ties to even
    pattern = smallest.view(np.uint32)
    zero = _upper_half(np.where(smallest < 0, pattern + np.uint32(0xFFFF), pattern))  # towards -infinity
    return zero, _scale(zero, largest, 2**bits - 1)


def _scale(low: np.ndarray, high: np.ndarray, steps: int) -> np.ndarray:
    """The smallest bfloat16 of which ``steps`` steps reach from low to high, at least SMALLEST_SCALE; 0 if high is not above
    low."""
    scale = np.maximum((high - low) / np.float32(steps), SMALLEST_SCALE)
    return np.where(high > low, _upper_half(scale.view(np.uint32) + np.uint32(0xFFFF)), np.float32(0))


def _upper_half(pattern: np.ndarray) -> np.ndarray:
    return (pattern & np.uint32(0xFFFF0000)).view(np.float32)


def dequantize(payload: Tensor, params: Tensor, bits: int, out: Tensor) -> None:
    """``out`` (n, F) = zero-point + code * scale."""
    byte, shift = packing.places(out.shape[1], bits)
    codes = payload.numpy()[:, byte] >> shift & np.uint8(2**bits - 1)
    zero, scale = params.float()[:, :1], params.float()[:, 1:]
    torch.add(zero, torch.from_numpy(codes).float() * scale, out=out)
