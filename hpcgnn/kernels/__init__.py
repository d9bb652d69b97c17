"""Sparse kernels behind one dispatcher: ``native`` (C++), ``jit`` (numba) and ``reference`` (torch)."""

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dispatch import BACKENDS, dropout, index_add, resolve, spmm

__all__ = ["BACKENDS", "Csr", "dropout", "index_add", "resolve", "spmm"]
