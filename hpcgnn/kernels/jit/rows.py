"""See :mod:`hpcgnn.kernels.rows`."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.jit.common import draw32, on_torch_threads, row_hash


@on_torch_threads
def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    _gather_rows(x.numpy(), index.numpy(), out.numpy())


def cluster(index: Tensor, indptr: Tensor, order: Tensor) -> None:
    _cluster(index.numpy(), indptr.numpy(), order.numpy())


@njit(parallel=True, nogil=True, cache=True)
def _gather_rows(x, index, out):
    for row in numba.prange(index.size):
        if index[row] < 0:
            out[row] = 0
        else:
            out[row] = x[index[row]]


@njit(nogil=True, cache=True)
def _cluster(index, indptr, order):
    """A counting sort on one thread: positions are placed in the order of the index, so the sort is stable."""
    indptr[:] = 0
    for position in range(index.size):
        indptr[index[position] + 1] += 1
    for row in range(indptr.size - 1):
        indptr[row + 1] += indptr[row]
    place = np.empty(indptr.size - 1, np.int64)
    place[:] = indptr[:-1]
    for position in range(index.size):
        row = index[position]
        order[place[row]] = position
        place[row] += 1


@on_torch_threads
def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    _dropout(x.numpy(), ids.numpy(), np.uint64(key), np.uint32(threshold), x.numpy().dtype.type(scale), out.numpy())


@njit(parallel=True, nogil=True, cache=True)
def _dropout(x, ids, key, threshold, scale, out):
    for row in numba.prange(x.shape[0]):
        hashed = row_hash(key, ids[row])
        low, high = np.uint32(hashed), np.uint32(hashed >> np.uint64(32))
        for column in range(x.shape[1]):
            kept = draw32(low, high, column) >= threshold
            out[row, column] = x[row, column] * scale if kept else 0.0
