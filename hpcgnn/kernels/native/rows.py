"""See :mod:`hpcgnn.kernels.rows`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.native.library import function, pointer, threads

_INDEX = {torch.int32: "i32", torch.int64: "i64"}


def gather_rows(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """Write row ``index[k]`` of ``x`` (n, bytes) uint8, zeros for a negative one, to row k of ``out``."""
    function(f"gather_rows_{_INDEX[index.dtype]}")(
        pointer(x),
        ctypes.c_int64(x.shape[1]),
        pointer(index),
        ctypes.c_int64(index.numel()),
        pointer(out),
        threads(),
    )


def cluster(index: torch.Tensor, indptr: torch.Tensor, order: torch.Tensor) -> None:
    """Write the stable order that sorts ``index``, and where each row's positions are in it."""
    function(f"cluster_{_INDEX[index.dtype]}")(
        pointer(index),
        ctypes.c_int64(index.numel()),
        ctypes.c_int64(indptr.numel() - 1),
        pointer(indptr),
        pointer(order),
        threads(),
    )
