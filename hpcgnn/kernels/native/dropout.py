"""See :mod:`hpcgnn.kernels.dropout`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.native.library import function, pointer, threads

_REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, threshold: int, scale: float, out: torch.Tensor) -> None:
    """``out = x * scale`` where kept, else 0; the mask is a function of (key, id, column)."""
    function("dropout", x.dtype)(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        pointer(ids),
        ctypes.c_uint64(key),
        ctypes.c_uint32(threshold),
        _REAL[x.dtype](scale),
        pointer(x),
        pointer(out),
        threads(),
    )
