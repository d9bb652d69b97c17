"""Sparse kernels behind one dispatcher: ``native`` (C++), ``jit`` (numba) and ``reference`` (torch)."""

from hpcgnn.kernels.backend import BACKENDS, resolve
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dropout import dropout
from hpcgnn.kernels.quantize import dequantize, pack_bf16, pack_int8, quantize, unpack_bf16
from hpcgnn.kernels.spmm import index_add, spmm

__all__ = [
    "BACKENDS",
    "Csr",
    "dequantize",
    "dropout",
    "index_add",
    "pack_bf16",
    "pack_int8",
    "quantize",
    "resolve",
    "spmm",
    "unpack_bf16",
]
