"""See :mod:`hpcgnn.kernels.rows`."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.jit.threads import on_torch_threads


@on_torch_threads
def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    """Write row ``index[k]`` of ``x`` (n, bytes) uint8, zeros for a negative one, to row k of ``out``."""
    _gather_rows(x.numpy(), index.numpy(), out.numpy())


def cluster(index: Tensor, indptr: Tensor, order: Tensor) -> None:
    """Write the stable order that sorts ``index`` to ``order``, and each row's range in it to ``indptr``."""
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
