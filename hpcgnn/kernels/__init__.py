"""Sparse kernels behind one dispatcher: ``native`` (C++), ``jit`` (numba) and ``reference`` (torch)."""

from hpcgnn.kernels.activation import DropoutMask, Norm
from hpcgnn.kernels.autograd import (
    activation,
    edge_softmax,
    edge_sum,
    gather_rows,
    index_add,
    scatter_rows,
    sddmm,
    spmm,
)
from hpcgnn.kernels.backend import BACKENDS, resolve
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dropout import dropout
from hpcgnn.kernels.quantize import dequantize, pack_bf16, pack_int8, quantize, unpack_bf16
from hpcgnn.kernels.spmm import spmm_in_blocks

__all__ = [
    "BACKENDS",
    "Csr",
    "DropoutMask",
    "Norm",
    "activation",
    "dequantize",
    "dropout",
    "edge_softmax",
    "edge_sum",
    "gather_rows",
    "index_add",
    "pack_bf16",
    "pack_int8",
    "quantize",
    "resolve",
    "scatter_rows",
    "sddmm",
    "spmm",
    "spmm_in_blocks",
    "unpack_bf16",
]
