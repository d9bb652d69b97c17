"""Quantization of a whole matrix through the kernels of messages, with payloads and parameters in arrays that a test can read."""

from __future__ import annotations

import torch

from hpcgnn.kernels.messages import decode_rows, encode_rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes


def places(rows: int, width: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows,) offsets of payloads and of parameters: all payloads, then all parameters."""
    numbers, row_bytes = torch.arange(rows), payload_bytes(width, bits)
    return numbers * row_bytes, rows * row_bytes + numbers * PARAMS_BYTES


def quantize(x: torch.Tensor, bits: int, key: int, backend: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """(n, bytes) uint8 payload and (n, 2) bfloat16 parameters of ``x`` (n, F)."""
    rows, width = x.shape
    payloads = rows * payload_bytes(width, bits)
    buffer = torch.zeros(payloads + rows * PARAMS_BYTES, dtype=torch.uint8)
    encode_rows(x, torch.arange(rows), bits, key, buffer, *places(rows, width, bits), backend=backend)
    params = buffer[payloads:].clone().view(torch.bfloat16).view(rows, 2)
    return buffer[:payloads].view(rows, payload_bytes(width, bits)), params


def dequantize(
    payload: torch.Tensor, params: torch.Tensor, bits: int, num_columns: int, backend: str = "auto"
) -> torch.Tensor:
    """The (n, num_columns) rows that :func:`quantize` stored."""
    rows = payload.shape[0]
    buffer = torch.cat((payload.flatten(), params.contiguous().view(torch.uint8).flatten()))
    out = torch.full((rows, num_columns), torch.nan)
    decode_rows(buffer, *places(rows, num_columns, bits), bits, out, torch.arange(rows), backend=backend)
    return out
