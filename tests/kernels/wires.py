"""Rows of a wire buffer at places that a test chooses, and encoded rows in arrays that it can read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.messages import decode_rows, encode_rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

UNTOUCHED = 0xA5


def encoded(
    x: torch.Tensor, rows: torch.Tensor, bits: int, key: int | None, backend: str = "native"
) -> tuple[torch.Tensor, ...]:
    """These rows of ``x`` as uint8 payload (n, bytes) and parameters (n, 4 or 0), and the decoded rows."""
    count, size = rows.numel(), payload_bytes(x.shape[1], bits)
    numbers, of_params = torch.arange(count), PARAMS_BYTES if bits <= 8 else 0
    buffer, decoded = torch.zeros(count * (size + of_params), dtype=torch.uint8), torch.empty(count, x.shape[1])
    places = numbers * size, count * size + numbers * of_params if of_params else None
    encode_rows(x, rows, bits, key, buffer, *places, backend=backend)
    decode_rows(buffer, *places, bits, decoded, numbers, backend=backend)
    return buffer[: count * size].view(count, size), buffer[count * size :].clone().view(count, of_params), decoded


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


def assert_same_rows(found: Int8Rows, expected: Int8Rows) -> None:
    assert_same(found.codes, expected.codes)
    assert_same(found.scale, expected.scale)
