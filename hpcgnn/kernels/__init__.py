"""Sparse kernels, and dense products, behind one dispatcher: ``native`` (C++), ``jit`` (numba) and ``reference`` (torch)."""

from hpcgnn.kernels.activation import DropoutMask, Norm
from hpcgnn.kernels.attention import attention_weights
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
from hpcgnn.kernels.autograd import dense as dense_product
from hpcgnn.kernels.backend import BACKENDS, resolve
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.dropout import dropout
from hpcgnn.kernels.quantize import dequantize, pack_bf16, pack_int8, quantize, unpack_bf16

__all__ = [
    "BACKENDS",
    "Csr",
    "DropoutMask",
    "Norm",
    "activation",
    "attention_weights",
    "dense_product",
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
    "unpack_bf16",
]
