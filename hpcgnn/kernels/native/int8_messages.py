"""See :mod:`hpcgnn.kernels.int8_messages`."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.kernels.native.library import function, threads


def encode_codes(
    codes: Tensor, scale: Tensor, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor
) -> DeviceCount:
    """Write row ``rows[i]`` of ``codes`` (m, F) and ``scale`` (m,) to its place in ``buffer``; return the number of NaN
    scales."""
    return function("encode_int8")(
        count=rows.numel(),
        rows=rows,
        width=codes.shape[1],
        codes=codes,
        scale=scale,
        buffer=buffer,
        payload_at=payload_at,
        params_at=params_at,
        threads=threads(),
    )


def decode_codes(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor, codes: Tensor, scale: Tensor, rows: Tensor
) -> DeviceCount:
    """Reverse :func:`encode_codes`; return the number of rows of ``buffer`` that have another form."""
    return function("decode_int8")(
        count=rows.numel(),
        rows=rows,
        width=codes.shape[1],
        buffer=buffer,
        payload_at=payload_at,
        params_at=params_at,
        codes=codes,
        scale=scale,
        threads=threads(),
    )
