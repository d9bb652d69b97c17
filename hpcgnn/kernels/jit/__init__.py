"""The kernels in numba, which run where the native library could not be built.

torch computes dense products, norms and ReLU, and the kernels of ``reference`` those of 8-bit integers, for which numba has no
instructions.
"""

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators
from hpcgnn.kernels.dense import DENSE
from hpcgnn.kernels.int8 import INT8
from hpcgnn.kernels.messages import INT8_MESSAGES


def _load() -> Operators:
    from hpcgnn.kernels.activation import ByTorch
    from hpcgnn.kernels.jit import edges, messages, rows, spmm

    dense, int8, codes = DENSE.reference, INT8.reference, INT8_MESSAGES.reference
    return Operators(spmm, edges, rows, dense, ByTorch(rows), rows, messages, messages, int8, codes)


BACKEND = Backend("jit", _load, rank=1)
