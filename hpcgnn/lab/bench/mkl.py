"""MKL's product of a sparse matrix that it has inspected (inspector-executor), by ctypes.

The package ``sparse_dot_mkl`` finds the library. It offers no inspection, so its own product is that of an unknown matrix.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from hpcgnn.kernels import Csr

_SAME, _ROW_MAJOR, _GENERAL, _GNU_THREADS = 10, 101, 20, 3  # constants of mkl_spblas.h and mkl_service.h
_CALLS = 1000  # number of products for which the inspection may prepare


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


class MklProduct:
    """The product of ``csr``, a matrix of ones, and ``width`` columns of float32, on as many threads as torch uses now.

    Raises:
        RuntimeError: with MKL's number of the error.
    """

    def __init__(self, csr: Csr, width: int) -> None:
        self._library = _library()
        self._csr, self._indptr = csr, csr.indptr.int()
        self._ones = torch.ones(csr.num_entries)
        self._matrix, self._description = ctypes.c_void_p(), _Description(_GENERAL, 0, 0)
        starts, indices, ones = (each.data_ptr() for each in (self._indptr, csr.indices, self._ones))
        places = (ctypes.c_void_p(each) for each in (starts, starts + self._indptr.itemsize, indices, ones))
        self._run("create_csr", ctypes.byref(self._matrix), 0, csr.num_rows, csr.num_cols, *places, kind="s_")
        weakref.finalize(self, self._library.mkl_sparse_destroy, self._matrix)
        self._run("set_mm_hint", self._matrix, _SAME, self._description, _ROW_MAJOR, width, _CALLS)
        self._run("optimize", self._matrix)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, F) float32 in a new tensor. x: (columns, F) contiguous float32."""
        width, out = x.shape[1], torch.empty(self._csr.num_rows, x.shape[1])
        rows = (ctypes.c_void_p(x.data_ptr()), width, width)
        sums = (ctypes.c_float(0), ctypes.c_void_p(out.data_ptr()), width)
        one = ctypes.c_float(1)
        self._run("mm", _SAME, one, self._matrix, self._description, _ROW_MAJOR, *rows, *sums, kind="s_")
        return out

    def _run(self, name: str, *arguments: Any, kind: str = "") -> None:
        if failed := getattr(self._library, f"mkl_sparse_{kind}{name}")(*arguments):
            raise RuntimeError(f"MKL's mkl_sparse_{kind}{name} failed with number {failed}")


def _library() -> Any:
    from sparse_dot_mkl._mkl_interface import _cfunctions

    library = _cfunctions.mkl_library()
    library.mkl_set_threading_layer(_GNU_THREADS)  # torch's kind of threads; it counts before the first product only
    library.MKL_Set_Num_Threads(torch.get_num_threads())
    return library
