"""Sparse kernels behind one dispatcher: ``native`` (C++), ``jit`` (numba) and ``reference`` (torch)."""

from hpcgnn.kernels.backend import BACKENDS, resolve
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dropout import dropout
from hpcgnn.kernels.spmm import index_add, spmm, spmm_in_blocks

__all__ = ["BACKENDS", "Csr", "dropout", "index_add", "resolve", "spmm", "spmm_in_blocks"]
