"""Rows of floats as the bytes that travel, and back. Shapes: s rows sent, r rows received, F columns, n owned nodes.

Every codec offers the same. ``send``, ``received`` and their counts are what MPI is given. :meth:`encode` fills ``send``
from the rows and tells how many of them hold a NaN or an infinity. :meth:`add_received` decodes what has come, multiplies
it by R and adds it to ``z``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm.layout import BLOCK_BYTES, Group, Layout
from hpcgnn.comm.timings import Timings
from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows

_CACHED_BYTES = 8 << 20


class Codec(Protocol):
    """What an exchange needs to know of its messages."""

    send: torch.Tensor
    received: torch.Tensor
    send_counts: np.ndarray
    receive_counts: np.ndarray
    backend: str

    def encode(self, rows: torch.Tensor, key: int) -> int:
        """Fill ``send`` from ``rows`` (s, F), rounded under ``key``; returns how many rows are not finite."""
        ...

    def add_received(self, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, r) times the received rows."""
        ...


class PlainCodec:
    """32 bits a value, or 64 in double precision: the rows themselves are what travels.

    send: (s, F). received: (r, F). send_counts, receive_counts: (P,) rows.
    """

    def __init__(
        self,
        send: torch.Tensor,
        received: torch.Tensor,
        send_counts: np.ndarray,
        receive_counts: np.ndarray,
        timings: Timings,
        backend: str,
    ) -> None:
        self.send, self.received = send, received
        self.send_counts, self.receive_counts = send_counts, receive_counts
        self.timings, self.backend = timings, backend

    def encode(self, rows: torch.Tensor, key: int) -> int:
        """Only looks at the rows, which are ``send``; 1 stands for any number of rows."""
        if rows.numel() == 0:
            return 0
        with self.timings.measure("aggregation_seconds"):
            smallest, largest = torch.aminmax(rows)
            return int(not (smallest.isfinite() and largest.isfinite()))

    def add_received(self, matrix: Csr, z: torch.Tensor) -> None:
        """Post-aggregate."""
        with self.timings.measure("aggregation_seconds"):
            spmm(matrix, self.received.to(z.dtype), out=z, backend=self.backend)


class PackedCodec:
    """1, 2, 4, 8 or 16 bits a value, or several of these and 32 by turns.

    send, received: (blocks, BLOCK_BYTES) uint8. send_counts, receive_counts: (P,) blocks. decoded: gives (r, F) float32
    memory for the rows where they are not aggregated as they are.
    """

    def __init__(
        self,
        send: torch.Tensor,
        received: torch.Tensor,
        layouts: tuple[Layout, Layout],
        decoded: Callable[[], torch.Tensor],
        timings: Timings,
        backend: str,
    ) -> None:
        self.send, self.received = send.view(-1, BLOCK_BYTES), received.view(-1, BLOCK_BYTES)
        self.layouts, self.decoded = layouts, decoded
        self.send_counts, self.receive_counts = (layout.blocks for layout in layouts)
        self.timings, self.backend = timings, backend

    def encode(self, rows: torch.Tensor, key: int | None) -> int:
        """The noise of a row is a function of ``key``, its number among all rows sent, and the column; None: no noise."""
        wire, trouble = self.send.view(-1), 0
        with self.timings.measure("quantization_seconds"):
            rows = rows.float()
            wire.index_fill_(0, self.layouts[0].padding, 0)
            for group in self.layouts[0].groups:
                trouble += encode_rows(
                    rows, group.rows, group.bits, key, wire, group.payload_at, group.params_at,
                    backend=self.backend, check=False,
                )  # fmt: skip
        return trouble

    def add_received(self, matrix: Csr, z: torch.Tensor) -> None:
        """Decode and post-aggregate: in one go where that is faster."""
        groups = self.layouts[1].groups
        if len(groups) == 1 and z.dtype == torch.float32 and fuses(groups[0].bits, matrix, z.shape[1]):
            group = groups[0]
            with self.timings.measure("aggregation_seconds"):
                spmm_rows(
                    matrix, self.received.view(-1), group.payload_at, group.params_at, group.bits, z.shape[1], z,
                    backend=self.backend, check=False,
                )  # fmt: skip
            return
        with self.timings.measure("quantization_seconds"):
            decoded = self.decoded()
            decode(self.received, self.layouts[1], decoded, self.backend)
        with self.timings.measure("aggregation_seconds"):
            spmm(matrix, decoded.to(z.dtype), out=z, backend=self.backend)


class DeltaCodec:
    """Packed differences to what the receiver has already (error-compensated messages).

    Both sides keep the sum of all that was sent, so that what rounding lost in one epoch is part of the next one's
    difference. As training converges differences shrink, and with them the steps of the grid.

    kept_sent: (s, F) and kept_received: (r, F) float32, what the receivers and this rank hold.
    """

    def __init__(self, packed: PackedCodec, kept_sent: torch.Tensor, kept_received: torch.Tensor) -> None:
        self.packed, self.kept_sent, self.kept_received = packed, kept_sent, kept_received
        self.send, self.received = packed.send, packed.received
        self.send_counts, self.receive_counts = packed.send_counts, packed.receive_counts
        self.backend = packed.backend

    def encode(self, rows: torch.Tensor, key: int) -> int:
        """Overwrites ``rows`` with the differences; then takes them as the receivers will.

        Without noise: at random, a value moves by up to a step of its row's grid, and at 1 bit that is the row's whole
        range, so that errors would grow. To the nearest cell's centre leaves 2**-bits of the range.
        """
        packed = self.packed
        with packed.timings.measure("quantization_seconds"):
            difference = rows.float().sub_(self.kept_sent)
        trouble = packed.encode(difference, None)
        with packed.timings.measure("quantization_seconds"):
            decode(packed.send, packed.layouts[0], self.kept_sent, packed.backend, accumulate=True)
        return trouble

    def add_received(self, matrix: Csr, z: torch.Tensor) -> None:
        """Take the differences, then post-aggregate what is kept."""
        packed = self.packed
        with packed.timings.measure("quantization_seconds"):
            decode(packed.received, packed.layouts[1], self.kept_received, packed.backend, accumulate=True)
        with packed.timings.measure("aggregation_seconds"):
            spmm(matrix, self.kept_received.to(z.dtype), out=z, backend=packed.backend)


def received_rows(codec: Codec) -> torch.Tensor:
    """(r, F) what has come, as numbers: ``received`` itself where it is, else memory of its own."""
    if isinstance(codec, PlainCodec):
        return codec.received
    assert isinstance(codec, PackedCodec), "differences are no rows"
    rows = codec.decoded()
    own = buffers.empty(rows.shape[0], rows.shape[1], rows.dtype)
    decode(codec.received, codec.layouts[1], own, codec.backend)
    return own


def received_state(codec: Codec) -> dict[str, Any]:
    """What has come, as it came, for a checkpoint; in memory of its own. Later sums over it have the same bits."""
    if isinstance(codec, PlainCodec):
        return {"rows": codec.received.clone()}
    assert isinstance(codec, PackedCodec), "differences are no rows"
    groups = [(group.bits, group.rows, group.payload_at, group.params_at) for group in codec.layouts[1].groups]
    return {"bytes": codec.received.clone(), "groups": groups, "width": codec.decoded().shape[1]}


def kept_codec(rows: torch.Tensor, timings: Timings, backend: str) -> PlainCodec:
    """(r, F) rows that have come, and are sent no more."""
    none = np.zeros(0, np.int64)
    return PlainCodec(rows[:0], rows, none, none, timings, backend)


def received_codec(state: dict[str, Any], timings: Timings, backend: str) -> Codec:
    """A message that has come, from :func:`received_state`; it is sent no more."""
    if "rows" in state:
        return kept_codec(state["rows"], timings, backend)
    none = np.zeros(0, np.int64)
    groups = tuple(Group(*group) for group in state["groups"])
    rows = sum(group.rows.numel() for group in groups)
    layouts = tuple(Layout(none, own, torch.zeros(0, dtype=torch.int64)) for own in ((), groups))
    decoded = partial(buffers.empty, rows, state["width"], torch.float32)
    return PackedCodec(state["bytes"].new_empty(0), state["bytes"], layouts, decoded, timings, backend)  # type: ignore[arg-type]


def fuses(bits: int, matrix: Csr, width: int) -> bool:
    """Whether adding rows straight from their codes is faster than decoding them to a matrix first.

    Measured with the native kernels on a core with AVX-512: 2 bits and 256 columns take half the time, because a few bits
    a value are read for each entry instead of 32. Decoding anew for each entry costs more where codes are wide, rows
    narrow, or the decoded rows would have fitted into a cache.
    """
    entries, rows = matrix.num_entries, matrix.num_cols
    if bits <= 4:
        return width >= 64 or entries <= 4 * rows
    if bits == 8:
        return entries <= rows or (width >= 64 and rows * width * 4 > _CACHED_BYTES)
    return entries <= (4 if bits == 16 else 1) * rows


def decode(wire: torch.Tensor, layout: Layout, out: torch.Tensor, backend: str, *, accumulate: bool = False) -> None:
    """Overwrite ``out`` (rows, F) with the rows in ``wire``, or add them."""
    for group in layout.groups:
        decode_rows(
            wire.view(-1), group.payload_at, group.params_at, group.bits, out, group.rows,
            accumulate=accumulate, backend=backend, check=False,
        )  # fmt: skip
