"""The kernels in C++ (folder ``native/`` of the repository), loaded with ctypes."""

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators
from hpcgnn.kernels.native import library


def _load() -> Operators:
    from hpcgnn.kernels.native import (
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


BACKEND = Backend("native", _load, rank=2, missing=library.missing)
