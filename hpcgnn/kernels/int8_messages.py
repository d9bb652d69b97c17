"""Rows of 8-bit integers in a wire buffer, as they are: one entry to every backend.

A row of 8-bit codes of :mod:`hpcgnn.kernels.messages` stands for ``zero-point + code * S``, one of :mod:`hpcgnn.kernels.int8` for
``code * S``: with ``zero-point = -128 * S`` and 128 added to the codes they are the same numbers, so a row travels without being
made float32 in between, and rounded a second time.
"""

from __future__ import annotations

import torch

from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import INT8_MESSAGES, Count
from hpcgnn.kernels.int8 import Int8Rows


def encode_codes(
    x: Int8Rows,
    rows: torch.Tensor,
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor,
    backend: str = "auto",
) -> Count:
    """Write row ``rows[i]`` of ``x`` (m, F) to ``buffer``, as :func:`hpcgnn.kernels.messages.decode_rows` reads 8 bits.

    Scales must be bfloat16 numbers, as those of :func:`hpcgnn.kernels.int8.quantize_rows` are. Offsets are not checked.

    Args:
        rows, payload_at, params_at: (n,) contiguous int64. buffer: contiguous uint8.

    Returns:
        How many of the n rows held a NaN or an infinity.
    """
    kernels = choose(INT8_MESSAGES, backend, x=x.codes, rows=rows, buffer=buffer)
    return kernels.encode_codes(x.codes, x.scale, rows, buffer, payload_at, params_at)


def decode_codes(
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor,
    out: Int8Rows,
    rows: torch.Tensor,
    backend: str = "auto",
) -> Count:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F).

    Returns:
        How many of the rows are not of this form: they were not sent by :func:`encode_codes`, and ``out`` is of no use.
    """
    kernels = choose(INT8_MESSAGES, backend, out=out.codes, rows=rows, buffer=buffer)
    return kernels.decode_codes(buffer, payload_at, params_at, out.codes, out.scale, rows)
