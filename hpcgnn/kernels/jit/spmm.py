"""See :mod:`hpcgnn.kernels.spmm`. The order of sums, and so their bits, are those of the native kernel if that packs no rows."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.csr import Csr, as_columns
from hpcgnn.kernels.jit.common import on_torch_threads, prefetch, row_tasks

_SEGMENT_ENTRIES = 4096  # as in native/isa.cpp; a test compares both
_ENTRIES_AHEAD = 12
_NO_SCALE = np.zeros(0, np.float32)


@on_torch_threads
def spmm(csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor) -> None:
    weights = out.new_zeros(0, 1) if weight is None else as_columns(weight)  # none stand for ones
    stored = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    scales = _NO_SCALE if scale is None else scale.numpy()
    matrix = row_tasks(csr), csr.indptr.numpy(), csr.indices.numpy(), weights.numpy()
    _spmm(*matrix, stored.numpy(), scales, accumulate, out.numpy())


@njit(parallel=True, nogil=True, cache=True)
def _spmm(tasks, indptr, indices, weight, x, scale, accumulate, out):
    for task in numba.prange(tasks.shape[0]):
        segment = np.empty(x.shape[1], out.dtype)
        for row in range(tasks[task, 0], tasks[task, 1]):
            begin, end = indptr[row], indptr[row + 1]
            if begin == end:
                if not accumulate:
                    out[row] = 0
                continue
            if end - begin <= _SEGMENT_ENTRIES:
                _add(begin, end, indices, weight, x, scale, not accumulate, out[row])
            else:
                _add_in_segments(begin, end, indices, weight, x, scale, not accumulate, segment, out[row])


@njit(nogil=True, cache=True)
def _add_in_segments(begin, end, indices, weight, x, scale, fresh, segment, out):
    if fresh:
        out[:] = 0
    for first in range(begin, end, _SEGMENT_ENTRIES):
        _add(first, min(first + _SEGMENT_ENTRIES, end), indices, weight, x, scale, True, segment)
        for column in range(segment.size):
            out[column] += segment[column]


@njit(nogil=True, cache=True)
def _add(begin, end, indices, weight, x, scale, fresh, out):
    """Add the entries [begin, end) to ``out``; if it is ``fresh``, overwrite it without reading it."""
    heads = weight.shape[1]
    columns = out.size // heads
    if scale.size == 0 and heads == 1:
        _sum(begin, end, indices, weight, x, fresh, out)
        return
    if fresh:
        out[:] = 0
    for entry in range(begin, end):
        source = indices[entry]
        factor = out.dtype.type(1)
        if scale.size:
            factor *= scale[source]
        for head in range(heads):
            weighted = factor * weight[entry, head] if weight.shape[0] else factor
            for column in range(head * columns, (head + 1) * columns):
                out[column] += weighted * _value(x[source, column])


@njit(nogil=True, cache=True)
def _sum(begin, end, indices, weight, x, fresh, out):
    """The usual case, by four entries at a time: `out` then passes through the first-level cache a quarter as often."""
    last, line, zero = indices.size - 1, 64 // x.itemsize, out.dtype.type(0)
    weighted = weight.shape[0] > 0
    first_four = begin + (end - begin) % 4
    for entry in range(begin, first_four):
        source = indices[entry]
        factor = weight[entry, 0] if weighted else out.dtype.type(1)  # a product with one is exact
        for k in range(out.size):
            out[k] = (zero if fresh else out[k]) + factor * _value(x[source, k])
        fresh = False
    for entry in range(first_four, end, 4):
        a, b, c, d = indices[entry], indices[entry + 1], indices[entry + 2], indices[entry + 3]
        for ahead in range(entry + _ENTRIES_AHEAD, entry + _ENTRIES_AHEAD + 4):
            later = indices[min(ahead, last)]
            for column in range(0, x.shape[1], line):
                prefetch(x, later, column)
        if not weighted:
            for k in range(out.size):
                two = (zero if fresh else out[k]) + _value(x[a, k]) + _value(x[b, k])
                out[k] = two + _value(x[c, k]) + _value(x[d, k])
        else:
            u, v, w, z = weight[entry, 0], weight[entry + 1, 0], weight[entry + 2, 0], weight[entry + 3, 0]
            for k in range(out.size):
                two = (zero if fresh else out[k]) + u * _value(x[a, k]) + v * _value(x[b, k])
                out[k] = two + w * _value(x[c, k]) + z * _value(x[d, k])
        fresh = False


def _value(stored):  # this body runs only without numba
    return stored


@numba.extending.overload(_value)
def _value_of(stored):
    """The number that a stored value stands for; bfloat16 is passed as its bits."""
    if stored == numba.uint16:
        return lambda stored: np.uint32(np.uint32(stored) << np.uint32(16)).view(np.float32)
    if stored == numba.int8:
        return lambda stored: np.float32(stored)
    return lambda stored: stored
