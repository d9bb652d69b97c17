"""The kernels in plain torch and numpy: slow, obvious, and what the others are tested against."""

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
