"""The kernels in numba, which run where the native library could not be built."""

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators


def _load() -> Operators:
    from hpcgnn.kernels.jit import activation, dense, dropout, edges, int8, int8_messages, messages, narrow, rows, spmm

    return Operators(spmm, edges, rows, dense, activation, dropout, messages, narrow, int8, int8_messages)


BACKEND = Backend("jit", _load, rank=1)
