"""See :mod:`hpcgnn.kernels.narrow`. The same bits as from the native kernels."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.jit.quantize import to_bfloat16
from hpcgnn.kernels.jit.threads import on_torch_threads


@on_torch_threads
def pack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``, rounded to the nearest, ties to even."""
    _pack_bf16(x.view(torch.uint32).numpy().reshape(-1), out.view(torch.uint16).numpy().reshape(-1))


@njit(parallel=True, nogil=True, cache=True)
def _pack_bf16(patterns, out):
    for i in numba.prange(patterns.size):
        out[i] = to_bfloat16(patterns[i])


@on_torch_threads
def unpack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``."""
    _unpack_bf16(x.view(torch.uint16).numpy().reshape(-1), out.view(torch.uint32).numpy().reshape(-1))


@njit(parallel=True, nogil=True, cache=True)
def _unpack_bf16(patterns, out):
    for i in numba.prange(patterns.size):
        out[i] = np.uint32(patterns[i]) << np.uint32(16)
