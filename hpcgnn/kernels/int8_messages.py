"""Rows of 8-bit integers in a wire buffer, sent without another rounding, on every backend.

A code of an 8-bit row stands for ``zero-point + code * S`` in :mod:`hpcgnn.kernels.messages`, and for ``code * S`` in
:mod:`hpcgnn.kernels.int8`. With ``zero-point = -128 * S``, and 128 added to the codes, both are the same numbers. So a row of
8-bit integers travels without conversion to float32 and a second rounding.
"""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import INT8_MESSAGES, DeviceCount
from hpcgnn.kernels.int8 import Int8Rows


def encode_codes(
    x: Int8Rows, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor, backend: str = "auto"
) -> DeviceCount:
    """Write row ``rows[i]`` of ``x`` (m, F) to ``buffer``, in the form that :func:`hpcgnn.kernels.messages.decode_rows` reads as
    8 bits.

    Scales must be numbers that bfloat16 can hold, as those of :func:`hpcgnn.kernels.int8.quantize_rows` are. Offsets are not
    checked.

    Args:
        rows: (n,) contiguous int64 numbers of rows of ``x``.
        buffer: contiguous uint8.
        payload_at, params_at: (n,) contiguous int64 byte offsets in ``buffer``.

    Returns:
        The number of the n rows that held a NaN or an infinity before they were quantized.
    """
    kernels = choose(INT8_MESSAGES, backend, x=x.codes, rows=rows, buffer=buffer)
    return kernels.encode_codes(x.codes, x.scale, rows, buffer, payload_at, params_at)


def decode_codes(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor, out: Int8Rows, rows: Tensor, backend: str = "auto"
) -> DeviceCount:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F); arguments as for :func:`encode_codes`.

    Returns:
        The number of rows that do not have the form of :func:`encode_codes`; unless it is 0, ``out`` is useless.
    """
    kernels = choose(INT8_MESSAGES, backend, out=out.codes, rows=rows, buffer=buffer)
    return kernels.decode_codes(buffer, payload_at, params_at, out.codes, out.scale, rows)
