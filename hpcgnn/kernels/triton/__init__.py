"""The kernels in Triton: one source for GPUs of NVIDIA (CUDA) and AMD (ROCm).

A C compiler is all that Triton needs on the user's machine, for the few lines that start kernels.

With ``TRITON_INTERPRET=1`` in the environment, before Triton is first imported, its interpreter runs them on tensors of the CPU:
slowly, for tests without a GPU. They then run there for those who ask for ``backend="triton"`` by name.
"""

from hpcgnn.kernels.backend import FEATURES, Backend
from hpcgnn.kernels.contract import Operators
from hpcgnn.kernels.triton import launch


def _load() -> Operators:
    from hpcgnn.kernels.triton import (
        activation,
        dense,
        dropout,
        edges,
        int8,
        int8_messages,
        messages,
        narrow,
        rows,
        spmm,
    )

    return Operators(spmm, edges, rows, dense, activation, dropout, messages, narrow, int8, int8_messages)


BACKEND = Backend(
    "triton", _load, devices=launch.devices(), dtypes=FEATURES, rank=launch.rank(), missing=launch.missing
)
