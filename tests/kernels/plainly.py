"""Quantized rows by their definitions, in numpy, and a wire buffer that holds them; every backend must give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.kernels import keyed
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

UNTOUCHED = 0xA5
_LARGEST, _SMALLEST_SCALE, _STEP = np.float32(2.0**126), np.float32(2.0**-110), np.float32(2**17)
_ZERO, _TOP = np.float32(0), np.float32(127)


def _bfloat16(values: np.ndarray, towards: float | None = None) -> np.ndarray:
    """The nearest bfloat16 numbers as float32, ties to even; or the nearest ones that are not on the other side."""
    exact = torch.from_numpy(values)
    rounded = exact.bfloat16()
    if towards is not None:
        is_beyond = rounded.float() < exact if towards > 0 else rounded.float() > exact
        rounded = torch.where(is_beyond, torch.nextafter(rounded, torch.full_like(rounded, towards)), rounded)
    return rounded.float().numpy()


def noise_of(key: int | None, numbers: np.ndarray, width: int) -> np.ndarray:
    """(n, width) int32 noise in units of 2**-17: 16 random bits, and a half of the last one; without a key, half a step."""
    columns = np.arange(width)
    if key is None:
        return np.full((numbers.size, width), 2**16, np.int32)
    counters = (columns // 32 * 16 + columns % 16).astype(np.uint32)
    drawn = keyed.draws(keyed.row_hashes(key, numbers)[:, None], counters[None])
    return (np.where(columns // 16 % 2, drawn >> 16, drawn & 0xFFFF) * 2 + 1).astype(np.int32)


def _codes(x: np.ndarray, scale: np.ndarray, ends: tuple[int, int], noise: np.ndarray) -> np.ndarray:
    """``x`` (n, F) in units of ``scale`` (n, 1), clamped to ``ends`` and rounded with noise, in fixed point."""
    steps = x * np.divide(_STEP, scale, out=np.zeros_like(scale), where=scale > 0)
    return (steps.clip(ends[0] * _STEP, ends[1] * _STEP).astype(np.int32) + noise) >> 17


def int8_rows(x: torch.Tensor, noise: np.ndarray) -> Int8Rows:
    """``x`` (n, F) as :mod:`hpcgnn.kernels.int8` defines it, with ``noise`` (n, F) of :func:`noise_of`."""
    largest = np.abs(x.numpy()).max(1, initial=0)
    is_finite = np.isfinite(largest)
    largest = np.where(is_finite, largest, _ZERO).clip(0, _LARGEST)
    scale = np.where(largest > 0, _bfloat16(np.maximum(largest / _TOP, _SMALLEST_SCALE), towards=np.inf), _ZERO)
    values = np.where(is_finite[:, None], x.numpy(), _ZERO)
    codes = np.where(is_finite[:, None], _codes(values, scale[:, None], (-127, 127), noise), 0)
    scale[~is_finite] = np.nan
    return Int8Rows(torch.from_numpy(codes.astype(np.int8)), torch.from_numpy(scale))


def _grid(values: np.ndarray, bits: int, key: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(n, 1) zero-points and scales of finite rows, as float32."""
    low = values.min(1, keepdims=True, initial=np.inf).clip(-_LARGEST, _LARGEST) + _ZERO
    high = values.max(1, keepdims=True, initial=-np.inf).clip(-_LARGEST, _LARGEST)
    if values.shape[1] == 0:
        return np.zeros_like(low), np.zeros_like(low)
    start = low if key is None else _bfloat16(low, towards=-np.inf)
    steps = np.float32(2**bits if key is None else 2**bits - 1)
    scale = _bfloat16(np.maximum((high - start) / steps, _SMALLEST_SCALE), towards=np.inf)
    scale = np.where(high > start, scale, _ZERO)
    return _bfloat16(low + scale / 2) if key is None else start, scale


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """(n, bytes) codes: byte k of a block holds columns k, k + 16, k + 32, ... from its low bits up; in a last block that is not
    full, the distance is the number of its bytes.
    """
    width, block = codes.shape[1], 128 // bits
    payload = np.zeros((codes.shape[0], payload_bytes(width, bits)), np.uint8)
    for column in range(width):
        begin = column // block * block
        distance = 16 if width - begin >= block else payload_bytes(width - begin, bits)
        slot, byte = divmod(column - begin, distance)
        payload[:, begin * bits // 8 + byte] |= codes[:, column] << np.uint8(slot * bits)
    return payload


def encoded(x: torch.Tensor, numbers: torch.Tensor, bits: int, key: int | None) -> tuple[torch.Tensor, ...]:
    """Rows ``x`` (n, F) with these ``numbers`` as :mod:`hpcgnn.kernels.messages` defines them: uint8 payload (n, bytes) and
    parameters (n, 4 or 0), and the decoded rows.
    """
    if bits > 8:
        words = x.bfloat16() if bits == 16 else x
        if bits == 16:
            words.view(torch.int16)[x.isnan()] = 0x7FC0
        return words.view(torch.uint8), torch.empty(x.shape[0], 0), words.float()
    is_finite = x.isfinite().all(1)
    values = torch.where(is_finite[:, None], x, 0).numpy()
    zero, scale = _grid(values, bits, key)
    noise = noise_of(key, numbers.numpy(), x.shape[1])
    codes = _codes(values - zero, scale, (0, 2**bits - 1), noise).astype(np.uint8)
    codes[~is_finite.numpy()] = 0
    grid = torch.empty(x.shape[0], 2)
    grid[:, :1], grid[:, 1:] = torch.from_numpy(zero), torch.from_numpy(scale)
    grid[~is_finite] = torch.nan
    params = grid.bfloat16()
    params.view(torch.int16)[grid.isnan()] = 0x7FC0
    decoded = grid[:, :1] + torch.from_numpy(codes).float() * grid[:, 1:]
    return torch.from_numpy(_packed(codes, bits)), params.view(torch.uint8), decoded


@dataclass
class Wire:
    """A buffer, and the places of rows in it."""

    buffer: torch.Tensor
    payload_at: torch.Tensor
    params_at: torch.Tensor

    def at(self, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.payload_at, self.params_at if bits <= 8 else None

    def holding(self, payload: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """An untouched buffer with these bytes in their places."""
        buffer = torch.full_like(self.buffer, UNTOUCHED)
        buffer[self.payload_at[:, None] + torch.arange(payload.shape[1])] = payload
        if params.shape[1]:
            buffer[self.params_at[:, None] + torch.arange(PARAMS_BYTES)] = params
        return buffer


def make_wire(count: int, width: int, bits: int, seed: int, aligned: bool = False) -> Wire:
    """Places for ``count`` rows in random order with random gaps; the last payload ends with the buffer.

    aligned: to 16 bytes, parameters to 4 bytes; else payloads begin at an odd byte, and parameters anywhere.
    """
    rng = np.random.default_rng(seed)
    params_at = (PARAMS_BYTES if aligned else PARAMS_BYTES + 1) * rng.permutation(count * 3)[:count]
    begin = -(-15 * count // 16) * 16 + (0 if aligned else 1)  # behind the parameters
    gaps = rng.integers(0, 9, count)
    size = payload_bytes(width, bits)
    starts = begin + np.cumsum(size + gaps) - size
    if aligned:
        starts = begin + 16 * np.cumsum(-(-size // 16) + gaps // 4)
    buffer = torch.full((int(starts[-1]) + size if count else begin,), UNTOUCHED, dtype=torch.uint8)
    return Wire(buffer, torch.from_numpy(rng.permutation(starts)), torch.from_numpy(params_at))


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check equality bit for bit, except for the bits of NaNs."""
    patterns = {torch.float32: torch.int32, torch.bfloat16: torch.int16}.get(expected.dtype, expected.dtype)
    assert found.dtype == expected.dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0).view(patterns), expected.nan_to_num(0).view(patterns))
