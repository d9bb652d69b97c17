"""The kernels in plain torch and numpy: slow and simple, they are the reference for tests of the others."""

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators


def _load() -> Operators:
    from hpcgnn.kernels.reference import (
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


BACKEND = Backend("reference", _load)
