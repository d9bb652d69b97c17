"""See :mod:`hpcgnn.kernels.edges`. Dot products are summed in the order of the native kernel, so they have the same bits."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.jit.common import on_torch_threads, row_tasks

_LANES = 16  # as in native/edges.h


@on_torch_threads
def sddmm(csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
    if op == "dot" and b is not None:
        _dot(*_matrix(csr), a.numpy(), b.numpy(), heads, out.numpy())
    else:
        _add(*_matrix(csr), a.numpy(), (a[:0] if b is None else b).numpy(), b is not None, out.numpy())


@on_torch_threads
def edge_softmax(csr: Csr, scores: Tensor, out: Tensor) -> None:
    _softmax(*_matrix(csr), scores.numpy(), out.numpy())


@on_torch_threads
def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
    _softmax_backward(*_matrix(csr), alpha.numpy(), gradient.numpy(), out.numpy())


@on_torch_threads
def edge_sum(csr: Csr, values: Tensor, out: Tensor) -> None:
    _sum(*_matrix(csr), values.numpy(), out.numpy())


def _matrix(csr: Csr) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return row_tasks(csr), csr.indptr.numpy(), csr.indices.numpy()


@njit(parallel=True, nogil=True, cache=True)
def _dot(tasks, indptr, indices, a, b, heads, out):
    columns = a.shape[1] // heads
    for task in numba.prange(tasks.shape[0]):
        lanes = np.empty(_LANES, a.dtype)
        for row in range(tasks[task, 0], tasks[task, 1]):
            for entry in range(indptr[row], indptr[row + 1]):
                for head in range(heads):
                    share = slice(head * columns, (head + 1) * columns)
                    out[entry, head] = _dot_of(a[row, share], b[indices[entry], share], lanes)


@njit(nogil=True, cache=True)
def _dot_of(a, b, lanes):
    lanes[:] = 0
    whole = a.size // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            lanes[lane] += a[first + lane] * b[first + lane]
    for column in range(whole, a.size):
        lanes[column - whole] += a[column] * b[column]
    half = _LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(parallel=True, nogil=True, cache=True)
def _add(tasks, indptr, indices, a, b, both, out):
    for task in numba.prange(tasks.shape[0]):
        for row in range(tasks[task, 0], tasks[task, 1]):
            for entry in range(indptr[row], indptr[row + 1]):
                for column in range(a.shape[1]):
                    value = a[row, column]
                    out[entry, column] = value + b[indices[entry], column] if both else value


@njit(parallel=True, nogil=True, cache=True)
def _softmax(tasks, indptr, indices, scores, out):
    for task in numba.prange(tasks.shape[0]):
        for row in range(tasks[task, 0], tasks[task, 1]):
            begin, end = indptr[row], indptr[row + 1]
            for head in range(scores.shape[1]):
                top = scores.dtype.type(-np.inf)
                for entry in range(begin, end):
                    score = scores[entry, head]
                    top = score if score > top or score != score else top  # a NaN remains
                if top == -np.inf:
                    top = scores.dtype.type(0)
                total = scores.dtype.type(0)
                for entry in range(begin, end):
                    out[entry, head] = np.exp(scores[entry, head] - top)
                    total += out[entry, head]
                if total != 0:
                    for entry in range(begin, end):
                        out[entry, head] /= total


@njit(parallel=True, nogil=True, cache=True)
def _softmax_backward(tasks, indptr, indices, alpha, gradient, out):
    for task in numba.prange(tasks.shape[0]):
        for row in range(tasks[task, 0], tasks[task, 1]):
            begin, end = indptr[row], indptr[row + 1]
            for head in range(alpha.shape[1]):
                total = alpha.dtype.type(0)
                for entry in range(begin, end):
                    total += alpha[entry, head] * gradient[entry, head]
                for entry in range(begin, end):
                    out[entry, head] = alpha[entry, head] * (gradient[entry, head] - total)


@njit(parallel=True, nogil=True, cache=True)
def _sum(tasks, indptr, indices, values, out):
    for task in numba.prange(tasks.shape[0]):
        for row in range(tasks[task, 0], tasks[task, 1]):
            out[row] = 0
            for entry in range(indptr[row], indptr[row + 1]):
                for column in range(values.shape[1]):
                    out[row, column] += values[entry, column]
