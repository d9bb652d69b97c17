"""See :mod:`hpcgnn.kernels.quantize`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.native.library import function, pointer, threads


def quantize(x: torch.Tensor, bits: int, key: int, payload: torch.Tensor, params: torch.Tensor) -> None:
    """Write the codes of ``x`` (n, F) to ``payload`` and their zero-points and scales to ``params``."""
    function("quantize")(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        ctypes.c_int(bits),
        ctypes.c_uint64(key),
        pointer(x),
        pointer(payload),
        pointer(params),
        threads(),
    )


def dequantize(payload: torch.Tensor, params: torch.Tensor, bits: int, out: torch.Tensor) -> None:
    """``out`` (n, F) = zero-point + code * scale."""
    function("dequantize")(
        ctypes.c_int64(out.shape[0]),
        ctypes.c_int64(out.shape[1]),
        ctypes.c_int(bits),
        pointer(payload),
        pointer(params),
        pointer(out),
        threads(),
    )


def pack_bf16(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = ``x``, to the nearest."""
    function("pack_bf16")(ctypes.c_int64(x.numel()), pointer(x), pointer(out), threads())


def unpack_bf16(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = ``x``."""
    function("unpack_bf16")(ctypes.c_int64(x.numel()), pointer(x), pointer(out), threads())


def pack_int8(x: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> None:
    """``values`` (n, F) * ``scale`` (n,) is ``x``, to the nearest."""
    function("pack_int8")(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        pointer(x),
        pointer(values),
        pointer(scale),
        threads(),
    )
