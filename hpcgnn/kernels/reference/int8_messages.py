"""See :mod:`hpcgnn.kernels.int8_messages`; uses torch's operations, for tensors of any device."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.kernels.packing import PARAMS_BYTES

_MIDDLE = 128  # the number that is added to a code
_ROWS_AT_ONCE = 1 << 14  # limits memory: an index takes 8 bytes for each byte that it names


def encode_codes(
    codes: Tensor, scale: Tensor, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor
) -> DeviceCount:
    """Write row ``rows[i]`` of ``codes`` (m, F) and ``scale`` (m,) to its place in ``buffer``; return the number of NaN
    scales."""
    chosen = scale[rows]
    params = torch.stack((-_MIDDLE * chosen, chosen), 1).bfloat16().view(torch.uint8)
    buffer[_bytes(params_at, PARAMS_BYTES)] = params
    for first in range(0, rows.numel(), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        buffer[_bytes(payload_at[some], codes.shape[1])] = codes[rows[some]].view(torch.uint8) ^ _MIDDLE
    nonfinite = chosen.isnan().sum()
    return int(nonfinite) if nonfinite.is_cpu else nonfinite


def decode_codes(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor, codes: Tensor, scale: Tensor, rows: Tensor
) -> DeviceCount:
    """Reverse :func:`encode_codes`; return the number of rows of ``buffer`` that have another form."""
    params = buffer[_bytes(params_at, PARAMS_BYTES)].view(torch.bfloat16).float()
    scale[rows] = params[:, 1]
    for first in range(0, rows.numel(), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        codes[rows[some]] = (buffer[_bytes(payload_at[some], codes.shape[1])] ^ _MIDDLE).view(torch.int8)
    others = ((params[:, 0] != -_MIDDLE * params[:, 1]) & ~params[:, 1].isnan()).sum()
    return int(others) if others.is_cpu else others


def _bytes(at: Tensor, count: int) -> Tensor:
    """(n, count) positions of the ``count`` bytes that begin at each of ``at`` (n,)."""
    return at[:, None] + torch.arange(count, device=at.device)
