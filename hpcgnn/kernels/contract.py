"""The contract of a backend of kernels: a protocol for each operator's module, and :class:`Operators`, which holds the modules.

A backend is one package whose ``BACKEND`` is a :class:`hpcgnn.kernels.backend.Backend`. mypy checks the modules that it gives to
:class:`Operators` against the protocols, and ``tests/kernels/test_contract.py`` compares names and parameters at run time.
Packages in this folder are found automatically, others by the entry point group ``hpcgnn.backends`` or by
:func:`hpcgnn.kernels.register`.

These rules hold for all backends. The caller has checked every argument (the modules of the same names in :mod:`hpcgnn.kernels`
do so). The tensors of one call lie on one device, are contiguous unless the docstring says otherwise, and take no part in
autograd. Results are written to tensors that the caller has made; the earlier values of these are arbitrary, unless results are
added to them. A call may return before its device is done, if later work on that device waits for it. Results depend neither on
the number of threads nor on other work of the machine.

Shapes: R rows and C columns of a matrix, E its entries, F features, H heads, n any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from hpcgnn.kernels.backend import Operator
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.rows import ROWS, RowKernels

# A count: an int, or, if reading it would wait for a device, an int64 tensor without dimensions on that device.
DeviceCount = int | Tensor


class SpmmKernels(Protocol):
    """See :mod:`hpcgnn.kernels.spmm`.

    A module may also have ``bind(csr, dtype, width)``, which returns a faster form of its ``spmm`` with the same arguments, for
    this matrix with ``csr.weight``, and ``x`` of one type and width. It must not refer to ``csr``, which keeps it.
    """

    def spmm(
        self, csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor
    ) -> None:
        """Write ``csr @ x`` to ``out`` (R, F), or add it.

        x: (C, F) float32, float64, bfloat16 or int8. out: float32, or float64 for float64 ``x``. weight: (E,), or (E, H)
        for H equal groups of columns, of the type of ``out``; ``csr.weight`` is ignored. scale: (C,) float32, for int8 ``x``.
        """
        ...


class EdgeKernels(Protocol):
    """See :mod:`hpcgnn.kernels.edges`. All tensors of a call are float32, or all float64; ``csr.weight`` is ignored."""

    def sddmm(self, csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
        """Write a value for each entry (r, c), from row r of ``a`` (R, F) and row c of ``b`` (C, F), to ``out``.

        op: ``dot`` writes the dot products of ``heads`` equal groups of columns, out (E, heads). ``add`` writes the sums of both
        rows, out (E, F). ``left`` copies row r of ``a``, out (E, F); ``b`` is None.
        """
        ...

    def edge_softmax(self, csr: Csr, scores: Tensor, out: Tensor) -> None:
        """Write the softmax over each row's entries of ``scores`` (E, H) to ``out`` (E, H)."""
        ...

    def edge_softmax_backward(self, csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
        """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (E, H), to ``out``."""
        ...

    def edge_sum(self, csr: Csr, values: Tensor, out: Tensor) -> None:
        """Write the sum of each row's entries of ``values`` (E, F) to ``out`` (R, F)."""
        ...


class DenseKernels(Protocol):
    """See :mod:`hpcgnn.kernels.dense`. All tensors of a call are float32, or all float64."""

    def arithmetics(self) -> tuple[str, ...]:
        """The values of ``compute`` that work on this machine: ``float32`` (the tensors' own type), and maybe ``bf16``,
        ``tf32``."""
        ...

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str
    ) -> None:
        """Write ``x`` (n, F) times ``weight`` (F, H; any strides), plus ``bias`` (H,), to ``out`` (n, H), or add it."""
        ...

    def weight_gradient(self, x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
        """Write ``x.T @ dy``, from ``x`` (n, F) and ``dy`` (n, H), to ``dweight`` (F, H), and the sums of the columns of ``dy``
        to ``sums`` (H,)."""
        ...


class ActivationKernels(Protocol):
    """See :mod:`hpcgnn.kernels.activation`. All tensors of a call, except a mask's ids, are float32, or all are float64."""

    def activate(self, x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        """Write ``dropout(relu(norm(x)))`` (n, F) to ``out``; return a tensor that the backward pass takes as ``kept``, or None.

        ``x`` and the tensors of ``norm`` and ``mask`` need not be contiguous.
        """
        ...

    def activate_backward(
        self,
        dy: Tensor,
        x: Tensor,
        kept: Tensor | None,
        norm: Norm | None,
        mask: DropoutMask | None,
        dx: Tensor,
        dweight: Tensor | None,
        dbias: Tensor | None,
    ) -> None:
        """Write the gradients of ``x`` (n, F) and, with a norm, of its weight and bias (F,). ``dy`` has the shape of ``x``, and
        need not be contiguous either."""
        ...


class DropoutKernels(Protocol):
    """See :mod:`hpcgnn.kernels.dropout`."""

    def dropout(self, x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
        """Write ``x * scale`` (n, F), float32 or float64, to ``out``, but 0 where the random draw is below ``threshold``.

        The draw is that of :mod:`hpcgnn.kernels.keyed` for (key, ids[row], column). ids: (n,) int64.
        """
        ...


class MessageKernels(Protocol):
    """See :mod:`hpcgnn.kernels.messages`, which defines a wire buffer. Every backend writes the same bytes.

    A module may also have ``bind_encode(rows, bits, payload_at, params_at, width)`` and ``bind_spmm_rows(csr, payload_at,
    params_at, bits, width)``: faster forms of two functions for the same arguments in each epoch, as functions of (x, key,
    buffer) and of (buffer, out).
    """

    def encode_rows(
        self,
        x: Tensor,
        rows: Tensor,
        bits: int,
        key: int | None,
        buffer: Tensor,
        payload_at: Tensor,
        params_at: Tensor | None,
    ) -> DeviceCount:
        """Write row ``rows[i]`` of ``x`` (n, F) float32 to its place in ``buffer``; return the number of rows that are not
        finite."""
        ...

    def decode_rows(
        self,
        buffer: Tensor,
        payload_at: Tensor,
        params_at: Tensor | None,
        bits: int,
        out: Tensor,
        rows: Tensor,
        accumulate: bool,
    ) -> DeviceCount:
        """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (n, F), or add it; return the number of rows not finite."""
        ...

    def spmm_rows(
        self, csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor
    ) -> None:
        """Add the product of ``csr``, weighted by ``csr.weight`` (float32) if there is one, and the C rows of ``buffer`` to
        ``out`` (R, F)."""
        ...


class Int8Kernels(Protocol):
    """See :mod:`hpcgnn.kernels.int8`. codes, a, b: int8. Keys lie in [0, 2**64); with None, values are rounded to the nearest."""

    def dot_products(self) -> bool:
        """Return whether kernels here use instructions that add products of four 8-bit integers."""
        ...

    def gathers_bytes(self) -> bool:
        """Return whether summing many gathered rows (:mod:`hpcgnn.kernels.spmm`) is faster with 8-bit integers than with
        float32.
        """
        ...

    def quantize_rows(self, x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
        """Quantize the rows of ``x`` (n, F) float32, times ``factor`` (n,) float32, to ``codes`` (n, F) and ``scale`` (n,)."""
        ...

    def product(
        self,
        codes: Tensor,
        scale: Tensor,
        weight: Tensor,
        weight_key: int | None,
        bias: Tensor | None,
        accumulate: bool,
        out: Tensor,
    ) -> None:
        """Write ``(codes * scale) @ weight + bias`` to ``out`` (n, H), or add it; ``codes`` (n, F), ``scale`` (n,), ``weight``
        (F, H; any strides), whose columns are quantized with noise of ``weight_key``, ``bias`` (H,).
        """
        ...

    def weight_gradient(
        self, codes: Tensor, scale: Tensor, dy: Tensor, key: int | None, dweight: Tensor, sums: Tensor | None
    ) -> None:
        """Write ``(codes * scale).T @ dy`` to ``dweight`` (F, H), and the sums of the columns of ``dy`` (n, H) to ``sums``
        (H,)."""
        ...

    def sddmm(self, csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
        """Like :meth:`EdgeKernels.sddmm` with op ``dot``, for the rows ``a * a_scale`` (R, F) and ``b * b_scale`` (C,
        F); a_scale: (R,). b_scale: (C,). out: float32."""
        ...


class Int8MessageKernels(Protocol):
    """See :mod:`hpcgnn.kernels.int8_messages`. Every backend writes the same bytes."""

    def encode_codes(
        self, codes: Tensor, scale: Tensor, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor
    ) -> DeviceCount:
        """Write row ``rows[i]`` of ``codes`` (m, F) and ``scale`` (m,) to its place in ``buffer``; return the number of NaN
        scales."""
        ...

    def decode_codes(
        self, buffer: Tensor, payload_at: Tensor, params_at: Tensor, codes: Tensor, scale: Tensor, rows: Tensor
    ) -> DeviceCount:
        """Reverse :meth:`encode_codes`; return the number of rows of ``buffer`` that have another form, whose results are
        useless."""
        ...


class NarrowKernels(Protocol):
    """See :mod:`hpcgnn.kernels.narrow`."""

    def pack_bf16(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` (n, F) float32 to ``out`` (n, F) bfloat16, rounded to the nearest, ties to even; every NaN becomes
        0x7FC0."""
        ...

    def unpack_bf16(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` (n, F) bfloat16 to ``out`` (n, F) float32."""
        ...


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


SPMM: Operator[SpmmKernels] = Operator("spmm", SpmmKernels)
EDGES: Operator[EdgeKernels] = Operator("edges", EdgeKernels)
DENSE: Operator[DenseKernels] = Operator("dense", DenseKernels)
ACTIVATION: Operator[ActivationKernels] = Operator("activation", ActivationKernels)
DROPOUT: Operator[DropoutKernels] = Operator("dropout", DropoutKernels)
MESSAGES: Operator[MessageKernels] = Operator("messages", MessageKernels)
NARROW: Operator[NarrowKernels] = Operator("narrow", NarrowKernels)
INT8: Operator[Int8Kernels] = Operator("int8", Int8Kernels, of_features=False)
INT8_MESSAGES: Operator[Int8MessageKernels] = Operator("int8_messages", Int8MessageKernels, of_features=False)
OPERATORS: tuple[Operator, ...] = (
    SPMM, EDGES, ROWS, DENSE, ACTIVATION, DROPOUT, MESSAGES, NARROW, INT8, INT8_MESSAGES,
)  # fmt: skip
assert [operator.name for operator in OPERATORS] == [field.name for field in fields(Operators)]
