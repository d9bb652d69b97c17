"""See :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.kernels import buffers
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.kernels.reference.narrow import pack_bf16
from hpcgnn.kernels.reference.quantize import dequantize, quantize
from hpcgnn.kernels.reference.spmm import spmm


def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> int:
    """Write row ``rows[i]`` of ``x`` (m, F) to its place in ``buffer``; return the number of rows that are not finite."""
    values = x[rows]
    if bits in QUANTIZED_BITS:
        assert params_at is not None, "checked before"
        payload = torch.empty(rows.numel(), payload_bytes(x.shape[1], bits), dtype=torch.uint8)
        params = torch.empty(rows.numel(), 2, dtype=torch.bfloat16)
        quantize(values, rows.numpy(), bits, key, payload, params)
        buffer[_bytes(params_at, PARAMS_BYTES)] = params.view(torch.uint8)
    elif bits == 16:
        packed = torch.empty(values.shape, dtype=torch.bfloat16)
        pack_bf16(values, packed)
        payload = packed.view(torch.uint8)
    else:
        payload = values.view(torch.uint8)
    buffer[_bytes(payload_at, payload.shape[1])] = payload
    return _not_finite(values)


def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor, accumulate: bool
) -> int:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F), or add it; return the number of rows that are not
    finite."""
    payload = buffer[_bytes(payload_at, payload_bytes(out.shape[1], bits))]
    if bits in QUANTIZED_BITS:
        assert params_at is not None, "checked before"
        params = buffer[_bytes(params_at, PARAMS_BYTES)].view(torch.bfloat16)
        values = torch.empty(rows.numel(), out.shape[1])
        dequantize(payload, params, bits, values)
        not_finite = _not_finite(params.float())
    else:
        words = payload.flatten().view(torch.bfloat16 if bits == 16 else torch.float32)
        values = words.float().view(rows.numel(), out.shape[1])
        not_finite = _not_finite(values)
    out[rows] = out[rows] + values if accumulate else values
    return not_finite


def spmm_rows(csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor) -> None:
    """Add ``csr`` times the rows of ``buffer``, which are decoded to a matrix first, to ``out`` (R, F)."""
    decoded = buffers.empty(csr.num_cols, out.shape[1], torch.float32)
    decode_rows(buffer, payload_at, params_at, bits, decoded, torch.arange(csr.num_cols), False)
    spmm(csr, csr.weight, decoded, None, True, out)


def _bytes(offsets: Tensor, count: int) -> Tensor:
    """(n, count) positions of the ``count`` bytes that begin at each offset."""
    return offsets[:, None] + torch.arange(count)


def _not_finite(values: Tensor) -> int:
    """The number of rows of ``values`` with a NaN or an infinity."""
    return int((~values.isfinite()).any(1).sum())
