"""What a backend of kernels offers: a protocol for each operator's module, and :class:`Operators`, which holds them.

A backend is one package whose ``BACKEND`` is a :class:`hpcgnn.kernels.backend.Backend`. mypy checks the modules that it hands to
:class:`Operators` against the protocols, and ``tests/kernels/test_contract.py`` compares names and parameters at run time.
Packages in this folder are found by themselves, others by the entry point group ``hpcgnn.backends`` or by
:func:`hpcgnn.kernels.register`.

Rules for all of them. Callers have checked every argument (the modules of the same names in :mod:`hpcgnn.kernels` do).
Tensors of one call lie on one device, are contiguous unless the docstring says otherwise, and take no part in autograd.
Results are written to tensors that the caller made; their values before are arbitrary unless they are added to. A call may
return before a device is done, if what is computed on that device afterwards waits for it. Results depend neither on the
number of threads nor on what else runs.

Shapes: R rows and C columns of a matrix, E its entries, F features, H heads, n any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import torch

from hpcgnn.kernels.backend import Operator
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.rows import ROWS, RowKernels

# How many: a number, or, where asking a device for it would wait for what it does, an int64 tensor there, of no dimensions.
Count = int | torch.Tensor


class SpmmKernels(Protocol):
    """See :mod:`hpcgnn.kernels.spmm`."""

    def spmm(
        self,
        csr: Csr,
        weight: torch.Tensor | None,
        x: torch.Tensor,
        scale: torch.Tensor | None,
        accumulate: bool,
        out: torch.Tensor,
    ) -> None:
        """Write ``csr @ x`` to ``out`` (R, F), or add it.

        x: (C, F) float32, float64, bfloat16 or int8. out: float32, or float64 for float64 ``x``. weight: (E,), or (E, H)
        for H equal groups of columns, of out's type; ``csr.weight`` is not looked at. scale: (C,) float32, for int8 ``x``.
        """
        ...


class EdgeKernels(Protocol):
    """See :mod:`hpcgnn.kernels.edges`. All tensors of a call are float32, or all float64; ``csr.weight`` is not looked at."""

    def sddmm(self, csr: Csr, a: torch.Tensor, b: torch.Tensor | None, op: str, heads: int, out: torch.Tensor) -> None:
        """Write a value for each entry (r, c), from row r of ``a`` (R, F) and row c of ``b`` (C, F), to ``out``.

        op: ``dot``, products of ``heads`` equal groups of columns, out (E, heads); ``add``, out (E, F); ``left``: row r of
        ``a`` alone, without ``b``.
        """
        ...

    def edge_softmax(self, csr: Csr, scores: torch.Tensor, out: torch.Tensor) -> None:
        """Write the softmax over each row's entries of ``scores`` (E, H) to ``out`` (E, H)."""
        ...

    def edge_softmax_backward(self, csr: Csr, alpha: torch.Tensor, gradient: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (E, H), to ``out``."""
        ...

    def edge_sum(self, csr: Csr, values: torch.Tensor, out: torch.Tensor) -> None:
        """Write the sum of each row's entries of ``values`` (E, F) to ``out`` (R, F)."""
        ...


class DenseKernels(Protocol):
    """See :mod:`hpcgnn.kernels.dense`. All tensors of a call are float32, or all float64."""

    def arithmetics(self) -> tuple[str, ...]:
        """What ``compute`` may be on this machine: ``float32`` (the tensors' own type), and perhaps ``bf16`` and ``tf32``."""
        ...

    def product(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        accumulate: bool,
        out: torch.Tensor,
        compute: str,
    ) -> None:
        """Write ``x`` (n, F) times ``weight`` (F, H; any strides), plus ``bias`` (H,), to ``out`` (n, H), or add it."""
        ...

    def weight_gradient(
        self, x: torch.Tensor, dy: torch.Tensor, dweight: torch.Tensor, sums: torch.Tensor | None, compute: str
    ) -> None:
        """Write the transposed ``x`` (n, F) times ``dy`` (n, H) to ``dweight`` (F, H), dy's column sums to ``sums`` (H,)."""
        ...


class ActivationKernels(Protocol):
    """See :mod:`hpcgnn.kernels.activation`. All tensors of a call are float32, or all float64, but for a mask's ids."""

    def activate(
        self, x: torch.Tensor, norm: Norm | None, mask: DropoutMask | None, out: torch.Tensor
    ) -> torch.Tensor | None:
        """Write ``dropout(relu(norm(x)))`` (n, F) to ``out``; returns what the backward pass is to be given as ``kept``.

        ``x``, and what norm and mask hold, need not be contiguous.
        """
        ...

    def activate_backward(
        self,
        dy: torch.Tensor,
        x: torch.Tensor,
        kept: torch.Tensor | None,
        norm: Norm | None,
        mask: DropoutMask | None,
        dx: torch.Tensor,
        dweight: torch.Tensor | None,
        dbias: torch.Tensor | None,
    ) -> None:
        """Write the gradients of ``x`` (n, F) and, with a norm, of its weight and bias (F,). ``dy``: as ``x``."""
        ...


class DropoutKernels(Protocol):
    """See :mod:`hpcgnn.kernels.dropout`."""

    def dropout(
        self, x: torch.Tensor, ids: torch.Tensor, key: int, threshold: int, scale: float, out: torch.Tensor
    ) -> None:
        """Write ``x * scale`` (n, F), float32 or float64, to ``out``; 0 where the draw is below ``threshold``.

        The draw is that of :mod:`hpcgnn.kernels.keyed` for (key, ids[row], column). ids: (n,) int64.
        """
        ...


class MessageKernels(Protocol):
    """See :mod:`hpcgnn.kernels.messages`, which says what a wire buffer holds. The bytes are the same from every backend."""

    def encode_rows(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        bits: int,
        key: int | None,
        buffer: torch.Tensor,
        payload_at: torch.Tensor,
        params_at: torch.Tensor | None,
    ) -> Count:
        """Write row ``rows[i]`` of ``x`` (n, F) float32 to its place in ``buffer``; returns how many are not finite."""
        ...

    def decode_rows(
        self,
        buffer: torch.Tensor,
        payload_at: torch.Tensor,
        params_at: torch.Tensor | None,
        bits: int,
        out: torch.Tensor,
        rows: torch.Tensor,
        accumulate: bool,
    ) -> Count:
        """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (n, F), or add it; returns how many are not finite."""
        ...

    def spmm_rows(
        self,
        csr: Csr,
        buffer: torch.Tensor,
        payload_at: torch.Tensor,
        params_at: torch.Tensor | None,
        bits: int,
        out: torch.Tensor,
    ) -> None:
        """Add ``csr``, with ``csr.weight`` (float32) if there is one, times the C rows of ``buffer`` to ``out`` (R, F)."""
        ...


class Int8Kernels(Protocol):
    """See :mod:`hpcgnn.kernels.int8`. codes, a, b: int8. Keys: in [0, 2**64), or None: to the nearest."""

    def dot_products(self) -> bool:
        """Whether kernels here use instructions that add products of four 8-bit integers."""
        ...

    def gathers_bytes(self) -> bool:
        """Whether sums of many gathered rows (:mod:`hpcgnn.kernels.spmm`) are faster of 8-bit integers than of float32."""
        ...

    def quantize_rows(
        self, x: torch.Tensor, factor: torch.Tensor | None, key: int | None, codes: torch.Tensor, scale: torch.Tensor
    ) -> None:
        """Write the rows of ``x`` (n, F) float32, times ``factor`` (n,) float32, to ``codes`` (n, F) and ``scale`` (n,)."""
        ...

    def product(
        self,
        x: torch.Tensor | None,
        key: int | None,
        codes: torch.Tensor,
        scale: torch.Tensor,
        weight: torch.Tensor,
        weight_key: int | None,
        bias: torch.Tensor | None,
        accumulate: bool,
        out: torch.Tensor,
    ) -> None:
        """Write the product of ``codes`` (n, F) times ``scale`` (n,) with ``weight`` (F, H; any strides), plus ``bias`` (H,), to
        ``out`` (n, H), or add it.

        x: (n, F) float32 to quantize first, with noise of ``key``, to ``codes`` and ``scale``; None: they are given.
        """
        ...

    def weight_gradient(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        dy: torch.Tensor,
        key: int | None,
        dweight: torch.Tensor,
        sums: torch.Tensor | None,
    ) -> None:
        """Write the transposed (``codes`` times ``scale``) (n, F) times ``dy`` (n, H) to ``dweight`` (F, H), dy's column sums to
        ``sums`` (H,)."""
        ...

    def sddmm(
        self,
        csr: Csr,
        a: torch.Tensor,
        a_scale: torch.Tensor,
        b: torch.Tensor,
        b_scale: torch.Tensor,
        op: str,
        heads: int,
        out: torch.Tensor,
    ) -> None:
        """As :meth:`EdgeKernels.sddmm` (``dot`` or ``add``), of ``a`` (R, F) times ``a_scale`` (R,) and ``b`` (C, F) times
        ``b_scale`` (C,), to ``out`` float32."""
        ...


class Int8MessageKernels(Protocol):
    """See :mod:`hpcgnn.kernels.int8_messages`. The bytes are the same from every backend."""

    def encode_codes(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
        buffer: torch.Tensor,
        payload_at: torch.Tensor,
        params_at: torch.Tensor,
    ) -> Count:
        """Write row ``rows[i]`` of ``codes`` (m, F) and ``scale`` (m,) to its place in ``buffer``; returns how many are NaN."""
        ...

    def decode_codes(
        self,
        buffer: torch.Tensor,
        payload_at: torch.Tensor,
        params_at: torch.Tensor,
        codes: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
    ) -> Count:
        """The reverse; returns how many rows of ``buffer`` have another form, of which nothing useful was made."""
        ...


class NarrowKernels(Protocol):
    """See :mod:`hpcgnn.kernels.narrow`."""

    def pack_bf16(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``x`` (n, F) float32 to ``out`` (n, F) bfloat16: to the nearest, ties to even, every NaN as 0x7FC0."""
        ...

    def unpack_bf16(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``x`` (n, F) bfloat16 to ``out`` (n, F) float32."""
        ...


@dataclass(frozen=True)
class Operators:
    """A backend's modules (or what else has their functions); None for what it does not do."""

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
