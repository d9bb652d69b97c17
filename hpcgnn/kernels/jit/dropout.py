"""See :mod:`hpcgnn.kernels.activation`."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.jit.keyed import draw32, row_hash
from hpcgnn.kernels.jit.threads import on_torch_threads


@on_torch_threads
def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    """``out = x * scale`` where the mask keeps an element, else 0; the mask is a function of (key, id, column)."""
    _dropout(x.numpy(), ids.numpy(), np.uint64(key), np.uint32(threshold), x.numpy().dtype.type(scale), out.numpy())


@njit(parallel=True, nogil=True, cache=True)
def _dropout(x, ids, key, threshold, scale, out):
    for row in numba.prange(x.shape[0]):
        hashed = row_hash(key, ids[row])
        low, high = np.uint32(hashed), np.uint32(hashed >> np.uint64(32))
        for column in range(x.shape[1]):
            kept = draw32(low, high, column) >= threshold
            out[row, column] = x[row, column] * scale if kept else 0.0
