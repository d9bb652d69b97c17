"""See :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import function, pointer, threads
from hpcgnn.kernels.native.spmm import DEFAULT_TUNING, csr_argument, tuning_argument


def encode_rows(
    x: torch.Tensor,
    rows: torch.Tensor,
    bits: int,
    key: int | None,
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
) -> int:
    """Write row ``rows[i]`` of ``x`` (m, F) to its place in ``buffer``; returns how many are not finite."""
    not_finite = ctypes.c_int64()
    function("encode_rows")(
        ctypes.c_int64(rows.numel()),
        pointer(rows),
        ctypes.c_int64(x.shape[1]),
        ctypes.c_int(bits),
        None if key is None else ctypes.byref(ctypes.c_uint64(key)),
        pointer(x),
        pointer(buffer),
        pointer(payload_at),
        pointer(params_at),
        ctypes.byref(not_finite),
        threads(),
    )
    return not_finite.value


def decode_rows(
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
    bits: int,
    out: torch.Tensor,
    rows: torch.Tensor,
    accumulate: bool,
) -> int:
    """Row ``rows[i]`` of ``out`` (m, F) = row i of ``buffer``, or += ; returns how many are not finite."""
    not_finite = ctypes.c_int64()
    function("decode_rows")(
        ctypes.c_int64(rows.numel()),
        pointer(rows),
        ctypes.c_int64(out.shape[1]),
        ctypes.c_int(bits),
        pointer(buffer),
        pointer(payload_at),
        pointer(params_at),
        pointer(out),
        ctypes.c_int(accumulate),
        ctypes.byref(not_finite),
        threads(),
    )
    return not_finite.value


def spmm_rows(
    csr: Csr,
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
    bits: int,
    out: torch.Tensor,
) -> None:
    """Add ``csr`` times the rows of ``buffer`` to ``out`` (R, F)."""
    function("spmm_rows")(
        csr_argument(csr, (0, csr.num_rows)),
        pointer(csr.weight),
        pointer(buffer),
        pointer(payload_at),
        pointer(params_at),
        ctypes.c_int(bits),
        ctypes.c_int64(out.shape[1]),
        pointer(out),
        tuning_argument(DEFAULT_TUNING),
        threads(),
    )
