"""The contract of a backend of kernels: :class:`Operators`, which holds a module for each operator.

The file of an operator has the protocol of such a module. The bodies of its functions are the kernels of ``reference``, in plain
torch and numpy: slow and simple, they are what tests compare the others with. Those of ``native``, in C++, stand beside them.

A backend is one package whose ``BACKEND`` is a :class:`hpcgnn.kernels.backend.Backend`. mypy checks the modules that it gives to
:class:`Operators` against the protocols, and ``tests/kernels/test_contract.py`` compares names and parameters at run time.
Packages in this folder are found automatically, others by the entry point group ``hpcgnn.backends`` or by
:func:`hpcgnn.kernels.register`.

These rules hold for all backends. The caller has checked every argument (the functions of an operator's file do so). The tensors
of one call lie on one device, are contiguous unless the docstring says otherwise, and take no part in autograd. Results are
written to tensors that the caller has made; the earlier values of these are arbitrary, unless results are added to them. A call
may return before its device is done, if later work on that device waits for it. Results depend neither on the number of threads
nor on other work of the machine.

Shapes: R rows and C columns of a matrix, E its entries, F features, H heads, n any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from hpcgnn.kernels import library
from hpcgnn.kernels.activation import ACTIVATION, DROPOUT, ActivationKernels, DropoutKernels
from hpcgnn.kernels.backend import Backend, Operator
from hpcgnn.kernels.dense import DENSE, DenseKernels
from hpcgnn.kernels.edges import EDGES, EdgeKernels
from hpcgnn.kernels.int8 import INT8, Int8Kernels
from hpcgnn.kernels.messages import INT8_MESSAGES, MESSAGES, Int8MessageKernels, MessageKernels
from hpcgnn.kernels.narrow import NARROW, NarrowKernels
from hpcgnn.kernels.rows import ROWS, RowKernels
from hpcgnn.kernels.spmm import SPMM, SpmmKernels


@dataclass(frozen=True)
class Operators:
    """A backend's modules, or other objects with their functions; None for operators that it does not have."""

    spmm: SpmmKernels | None = None
    edges: EdgeKernels | None = None
    rows: RowKernels | None = None
    dense: DenseKernels | None = None
    activation: ActivationKernels | None = None
    dropout: DropoutKernels | None = None
    messages: MessageKernels | None = None
    narrow: NarrowKernels | None = None
    int8: Int8Kernels | None = None
    int8_messages: Int8MessageKernels | None = None


OPERATORS: tuple[Operator, ...] = (
    SPMM, EDGES, ROWS, DENSE, ACTIVATION, DROPOUT, MESSAGES, NARROW, INT8, INT8_MESSAGES,
)  # fmt: skip
assert [operator.name for operator in OPERATORS] == [field.name for field in fields(Operators)]
NATIVE = Backend(
    "native", lambda: Operators(**{each.name: each.native for each in OPERATORS}), rank=2, missing=library.missing
)
REFERENCE = Backend("reference", lambda: Operators(**{each.name: each.reference for each in OPERATORS}))
