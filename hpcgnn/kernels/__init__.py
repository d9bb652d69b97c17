"""Sparse kernels and dense products behind one dispatcher, with the backends ``native`` (C++), ``jit`` (numba), ``triton``
(GPUs) and ``reference`` (torch); other packages may add more.

:mod:`hpcgnn.kernels.contract` defines the functions of a backend.
"""

from hpcgnn.kernels.activation import DropoutMask, Norm, dropout
from hpcgnn.kernels.autograd import (
    activation,
    attention_weights,
    edge_softmax,
    edge_sum,
    gather_rows,
    scatter_rows,
    sddmm,
    spmm,
)  # fmt: skip
from hpcgnn.kernels.autograd import dense as dense_product
from hpcgnn.kernels.backend import backends, register, resolve
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.narrow import pack_bf16, unpack_bf16

__all__ = [
    "Csr", "DropoutMask", "Norm", "activation", "attention_weights", "backends", "dense_product", "dropout", "edge_softmax",
    "edge_sum", "gather_rows", "pack_bf16", "register", "resolve", "scatter_rows", "sddmm", "spmm", "unpack_bf16",
]  # fmt: skip
