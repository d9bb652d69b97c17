"""Gathering and scattering of rows that an index names, and the order that sorts the index.

These functions are not differentiable; :mod:`hpcgnn.kernels.autograd` wraps the first two.
They raise ValueError, which names the argument, where one is wrong.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.library import native


class RowKernels(Protocol):
    """These kernels move bytes, so any type of features will do."""

    def gather_rows(self, x: Tensor, index: Tensor, out: Tensor) -> None:
        """Write row ``index[k]`` of ``x`` (n, bytes) uint8, zeros for a negative one, to row k of ``out``.

        index: (m,) int32 or int64. out: (m, bytes) uint8.
        """
        out.zero_()
        named = index >= 0
        out[named] = x[index[named].long()]

    def cluster(self, index: Tensor, indptr: Tensor, order: Tensor) -> None:
        """Write the stable order that sorts ``index`` (m,), int32 or int64, to ``order``, and each row's range in it to
        ``indptr``.

        indptr: (rows + 1,) int64. order: (m,) int32; int64 if m is 2**31 or more, which only ``reference`` must support.
        """
        indptr[0] = 0
        torch.cumsum(torch.bincount(index, minlength=indptr.numel() - 1), 0, out=indptr[1:])
        order.copy_(torch.argsort(index, stable=True))


class _Native(RowKernels):
    def gather_rows(self, x: Tensor, index: Tensor, out: Tensor) -> None:
        native("gather_rows", index.dtype, x=x, row_bytes=x.shape[1], index=index, count=index.numel(), out=out)

    def cluster(self, index: Tensor, indptr: Tensor, order: Tensor) -> None:
        rows = indptr.numel() - 1
        native("cluster", index.dtype, index=index, count=index.numel(), rows=rows, indptr=indptr, order=order)


ROWS: Operator[RowKernels] = Operator("rows", RowKernels, _Native(), of_features=False)


def gather_rows(x: Tensor, index: Tensor, backend: str = "auto", *, check: bool = True) -> Tensor:
    """``x[index]``: (m, ...) from ``x`` (n, ...) of any dtype and ``index`` (m,) int32 or int64.

    ``check=False`` is for an index that is right by construction; a negative number in it then gives a row of zeros.
    """
    if x.dim() == 0:
        raise WrongValueError("x must have rows, not be a single number")
    kernels = choose(ROWS, backend, x=x, index=index)
    if check:
        check_index(index, x.shape[0])
    width = math.prod(x.shape[1:])
    is_float = x.dtype in (torch.float32, torch.float64)
    new = buffers.empty if is_float else torch.empty
    out = new(index.numel(), width, dtype=x.dtype, device=x.device)
    if out.numel():
        rows = x.contiguous().view(x.shape[0], width).view(torch.uint8)
        kernels.gather_rows(rows, index.contiguous(), out.view(torch.uint8))
    return out.view(index.numel(), *x.shape[1:])


def scatter_rows(index: Tensor, src: Tensor, num_rows: int, backend: str = "auto") -> Tensor:
    """(num_rows, ...) tensor whose row ``index[k]`` is row k of ``src`` (m, ...), of any dtype; other rows are 0.

    Raises:
        ValueError: naming the argument that is wrong; also for an ``index`` that names a row twice.
    """
    if src.dim() == 0 or index.shape != src.shape[:1]:
        raise WrongValueError("index must hold one int32 or int64 integer per row of src")
    choose(ROWS, backend, src=src, index=index)  # raises unless a backend takes their device
    check_index(index, num_rows)
    positions = torch.arange(index.numel(), dtype=index.dtype, device=index.device)
    source = torch.full((num_rows,), -1, dtype=index.dtype, device=index.device)
    source[index] = positions
    twice = source[index] != positions
    if bool(twice.any()):
        raise WrongValueError(f"index must name each row at most once, but it names row {int(index[twice][0])} again")
    return gather_rows(src, source, backend, check=False)


def cluster(index: Tensor, num_rows: int, backend: str = "auto", *, check: bool = True) -> tuple[Tensor, Tensor]:
    """The stable order that sorts ``index`` (m,), int32 or int64 numbers below ``num_rows``, in O(m + num_rows) time.

    ``check=False`` is for an index that is right by construction.

    Returns:
        ``indptr`` (num_rows + 1,) int64 and ``order`` (m,) int32 (int64 from 2**31 entries): the positions in ``index``
        of row r are ``order[indptr[r]:indptr[r + 1]]``, ascending.
    """
    if num_rows < 0:
        raise WrongValueError(f"num_rows must not be negative, but is {num_rows}")
    fits = index.numel() < 2**31
    kernels = choose(ROWS, backend if fits else "reference", index=index)
    if check:
        check_index(index, num_rows)
    indptr = index.new_empty(num_rows + 1, dtype=torch.int64)
    order = index.new_empty(index.numel(), dtype=torch.int32 if fits else torch.int64)
    kernels.cluster(index.contiguous(), indptr, order)
    return indptr, order


def check_index(index: Tensor, size: int) -> None:
    """Check ``index`` in one pass over it.

    Raises:
        ValueError: unless it holds (m,) int32 or int64 numbers in [0, size).
    """
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise misfit("index", index, "one-dimensional int32 or int64")
    if index.numel():
        least, most = torch.aminmax(index)
        if not 0 <= int(least) <= int(most) < size:
            raise WrongValueError(f"index must lie in [0, {size}), not reach from {int(least)} to {int(most)}")
