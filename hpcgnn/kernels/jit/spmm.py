"""See :mod:`hpcgnn.kernels.spmm`. Sums in the order of the native kernel: the bits are the same."""

from __future__ import annotations

import numba
import numpy as np
import torch

from hpcgnn.kernels.csr import Csr, as_columns
from hpcgnn.kernels.jit.threads import use_torch_threads

_SEGMENT_ENTRIES = 4096  # as in native/isa.cpp; a test compares
_TASKS_A_THREAD = 16
_NO_SCALE = np.zeros(0, np.float32)


def prepare(csr: Csr, weight: torch.Tensor | None, x: torch.Tensor, reduce: str) -> None:
    """Nothing has to be made of ``x`` before :func:`spmm`."""


def spmm(
    csr: Csr,
    rows: tuple[int, int],
    weight: torch.Tensor | None,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    reduce: str,
    accumulate: bool,
    out: torch.Tensor,
    prepared: None = None,
) -> None:
    """Write rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``, or add them."""
    tasks = np.array(csr.row_blocks(use_torch_threads() * _TASKS_A_THREAD), np.int64).reshape(-1, 2).clip(*rows)
    weights = np.zeros((0, 1), out.numpy().dtype) if weight is None else as_columns(weight).numpy()
    _spmm(
        tasks,
        csr.indptr.numpy(),
        csr.indices.numpy(),
        weights,
        x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy(),
        _NO_SCALE if scale is None else scale.numpy(),
        reduce == "max",
        reduce == "mean",
        accumulate,
        out.numpy(),
    )


@numba.njit(parallel=True, nogil=True, cache=True)
def _spmm(tasks, indptr, indices, weight, x, scale, is_max, is_mean, accumulate, out):
    for task in numba.prange(tasks.shape[0]):
        segment = np.empty(x.shape[1], out.dtype)
        for row in range(tasks[task, 0], tasks[task, 1]):
            begin, end = indptr[row], indptr[row + 1]
            if begin == end:
                if not accumulate:
                    out[row] = 0
                continue
            mean_before = out[row].copy() if is_mean and accumulate else segment
            if is_mean or not accumulate:
                out[row] = -np.inf if is_max else 0
            if end - begin <= _SEGMENT_ENTRIES:
                _reduce(begin, end, indices, weight, x, scale, is_max, out[row])
            else:
                _reduce_in_segments(begin, end, indices, weight, x, scale, is_max, segment, out[row])
            if is_mean:
                out[row] /= out.dtype.type(end - begin)
                if accumulate:
                    out[row] += mean_before


@numba.njit(nogil=True, cache=True)
def _reduce_in_segments(begin, end, indices, weight, x, scale, is_max, segment, out):
    for first in range(begin, end, _SEGMENT_ENTRIES):
        segment[:] = -np.inf if is_max else 0
        _reduce(first, min(first + _SEGMENT_ENTRIES, end), indices, weight, x, scale, is_max, segment)
        for column in range(segment.size):
            if is_max:
                out[column] = _larger(out[column], segment[column])
            else:
                out[column] += segment[column]


@numba.njit(nogil=True, cache=True)
def _reduce(begin, end, indices, weight, x, scale, is_max, out):
    heads = weight.shape[1]
    columns = out.size // heads
    for entry in range(begin, end):
        source = indices[entry]
        if weight.shape[0] == 0 and scale.size == 0:
            _combine(x[source], out.dtype.type(1), False, is_max, out)
            continue
        factor = out.dtype.type(1)
        if scale.size:
            factor *= scale[source]
        for head in range(heads):
            share = slice(head * columns, (head + 1) * columns)
            weighted = factor * weight[entry, head] if weight.shape[0] else factor
            _combine(x[source, share], weighted, True, is_max, out[share])


@numba.njit(nogil=True, cache=True)
def _combine(values, factor, is_weighted, is_max, out):
    if is_max:
        for column in range(out.size):
            value = _value(values[column])
            out[column] = _larger(out[column], factor * value if is_weighted else value)
    elif is_weighted:
        for column in range(out.size):
            out[column] += factor * _value(values[column])
    else:
        for column in range(out.size):
            out[column] += _value(values[column])


@numba.njit(nogil=True, cache=True)
def _larger(a, b):
    return b if b > a or b != b else a  # a NaN stays


def _value(stored):  # the generic body runs only without numba
    return stored


@numba.extending.overload(_value)
def _value_of(stored):
    """What a stored number stands for: bfloat16 arrives as its bits."""
    if stored == numba.uint16:
        return lambda stored: np.uint32(np.uint32(stored) << np.uint32(16)).view(np.float32)
    if stored == numba.int8:
        return lambda stored: np.float32(stored)
    return lambda stored: stored
