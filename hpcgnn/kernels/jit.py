"""The kernels in numba: what runs where the native library could not be built."""

from __future__ import annotations

import os

import numba
import numpy as np
import torch

from hpcgnn.kernels.csr import Csr

if "NUMBA_THREADING_LAYER" not in os.environ:
    # numba's OpenMP layer asks for the system's runtime by file name, beside the one that torch brings; its own pool
    # sleeps while torch works. It allows one caller at a time, which is all that kernels need.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


def spmm(csr: Csr, rows: tuple[int, int], weight: torch.Tensor | None, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``."""
    _use_torch_threads()
    arguments = (rows[0], rows[1], csr.indptr.numpy(), csr.indices.numpy())
    if weight is None:
        _spmm_ones(*arguments, x.numpy(), out.numpy())
    else:
        _spmm_weighted(*arguments, weight.numpy(), x.numpy(), out.numpy())


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, threshold: int, scale: float, out: torch.Tensor) -> None:
    """``out = x * scale`` where kept, else 0; the mask is a function of (key, id, column)."""
    _use_torch_threads()
    _dropout(x.numpy(), ids.numpy(), np.uint64(key), np.uint32(threshold), x.numpy().dtype.type(scale), out.numpy())


def _use_torch_threads() -> None:
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


@numba.njit(parallel=True, nogil=True, cache=True)
def _spmm_ones(first, last, indptr, indices, x, out):
    for row in numba.prange(first, last):
        for entry in range(indptr[row], indptr[row + 1]):
            source = indices[entry]
            for column in range(x.shape[1]):
                out[row, column] += x[source, column]


@numba.njit(parallel=True, nogil=True, cache=True)
def _spmm_weighted(first, last, indptr, indices, weight, x, out):
    for row in numba.prange(first, last):
        for entry in range(indptr[row], indptr[row + 1]):
            source, factor = indices[entry], weight[entry]
            for column in range(x.shape[1]):
                out[row, column] += factor * x[source, column]


@numba.njit(nogil=True, cache=True)
def _mix64(v):
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def _mix32(v):
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D))
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(v ^ (v >> np.uint32(16)))


@numba.njit(parallel=True, nogil=True, cache=True)
def _dropout(x, ids, key, threshold, scale, out):
    for row in numba.prange(x.shape[0]):
        hashed = _mix64(key ^ _mix64(np.uint64(ids[row]) + np.uint64(0x9E3779B97F4A7C15)))
        low, high = np.uint32(hashed), np.uint32(hashed >> np.uint64(32))
        for column in range(x.shape[1]):
            draw = _mix32(_mix32(np.uint32(low + np.uint32(column) * np.uint32(0x9E3779B9))) ^ high)
            out[row, column] = x[row, column] * scale if draw >= threshold else 0.0
