"""The codec of quantized rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from hpcgnn.exchange.codecs.base import CodecTools, Codes, Differences
from hpcgnn.exchange.layout import BLOCK_BYTES, Group, Layout
from hpcgnn.exchange.row_bits import RowRanges
from hpcgnn.exchange.scratch import Place, Use
from hpcgnn.kernels import Csr, buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import MESSAGES, DeviceCount, MessageKernels
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.int8_messages import decode_codes, encode_codes
from hpcgnn.kernels.messages import Encode, adder, encoder
from hpcgnn.kernels.spmm import multiply

_CACHED_BYTES = 8 << 20
INT8_BITS = 8


class PackedCodec:
    """Rows of values of 1, 2, 4, 8, 16 or 32 bits; each row has its own bit-width. An item is a block of 64 bytes.

    layouts: layouts of the wires to and from this rank. width: number of columns F.
    """

    sends_rows_as_they_are = False
    item_bytes = BLOCK_BYTES

    def __init__(self, layouts: tuple[Layout, Layout], width: int, tools: CodecTools) -> None:
        self.layouts, self.width, self.tools = layouts, width, tools
        self.send_counts, self.receive_counts = (layout.blocks for layout in layouts)
        self._split: tuple[torch.Tensor, list[Encode], list[tuple[Group, torch.Tensor]]] | None = None
        self._quantizing = tools.timings.measure("quantization_seconds")
        self._aggregating = tools.timings.measure("aggregation_seconds")
        self._added_by: tuple[Csr, Callable[[torch.Tensor, torch.Tensor], None] | None] | None = None

    @cached_property
    def _kernels(self) -> MessageKernels:
        """The kernels of messages on the device of the layouts, whose offsets and rows are right by construction."""
        return choose(MESSAGES, self.tools.backend, x=torch.empty(0, device=self.layouts[0].padding.device))

    @cached_property
    def _encoders(self) -> list[Encode]:
        """The kernels that encode the groups of rows to send."""
        return [self._encoder(group) for group in self.layouts[0].groups]

    def _encoder(self, group: Group) -> Encode:
        return encoder(self._kernels, group.rows, group.bits, group.payload_at, group.params_at, self.width)

    @property
    def sends_int8_rows(self) -> bool:
        """Return whether some rows to send have 8 bits."""
        return any(group.bits == INT8_BITS for group in self.layouts[0].groups)

    @property
    def sends_other_rows(self) -> bool:
        """Return whether some rows to send have another bit-width than 8."""
        return any(group.bits != INT8_BITS for group in self.layouts[0].groups)

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int | None,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> DeviceCount:
        """See :meth:`hpcgnn.exchange.codecs.base.Codec.encode`.

        The noise is a function of ``key``, the number of the row among all rows sent, and the column. ``key=None``: no noise.
        """
        flat = wire.view(-1)
        nonfinite: DeviceCount = 0
        with self._quantizing:
            rows = rows.float()
            flat.index_fill_(0, self.layouts[0].padding, 0)
            if given is None:
                for encode in self._encoders:
                    nonfinite += encode(rows, key, flat)
                return nonfinite
            others, whole = self._divided(given)
            for encode in others:
                nonfinite += encode(rows, key, flat)
            for group, sources in whole:
                places = flat, group.payload_at, group.params_at
                nonfinite += encode_codes(given.rows, sources, *places, backend=self.tools.backend)
        return nonfinite

    def _divided(self, given: Codes) -> tuple[list[Encode], list[tuple[Group, torch.Tensor]]]:
        """The kernels that encode rows, and the groups of rows that are given, each with their (n,) numbers in ``given.rows``.

        Groups of 8 bits are split into given rows and others; the split is kept for the next call.
        """
        if self._split is None or self._split[0] is not given.sources:
            encoders, whole = [], []
            for group in self.layouts[0].groups:
                sources = given.sources[group.rows]
                is_given = (sources >= 0) & (group.bits == INT8_BITS)
                others, same = group.of(~is_given), group.of(is_given)
                if others.rows.numel():
                    encoders.append(self._encoder(others))
                if same.rows.numel():
                    whole.append((same, sources[is_given]))
            self._split = given.sources, encoders, whole
        return self._split[1:]

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """Write the rows to ``out`` if all have 8 bits and were sent unchanged; else return False."""
        groups = self.layouts[1].groups
        if any(group.bits != INT8_BITS for group in groups):
            return False
        for group in groups:
            places = wire.view(-1), group.payload_at, group.params_at
            with self._quantizing:
                others = decode_codes(*places, out, group.rows, backend=self.tools.backend)
            if isinstance(others, int) and others:  # GPUs send no other rows, and reading a count there would wait
                return False
        return True

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """Decode and post-aggregate, in one kernel where that is faster."""
        if self._added_by is None or self._added_by[0] is not matrix:
            self._added_by = matrix, self._adder(matrix)
        add = self._added_by[1]
        if add is not None and z.dtype == torch.float32:
            with self._aggregating:
                add(wire.view(-1), z)
            return
        with self._quantizing:
            decoded = self.tools.scratch.rows(Place(Use.RECEIVED_ROWS), self.num_received, self.width, torch.float32)
            self.decode(wire, self.layouts[1], decoded)
        with self._aggregating:
            multiply(matrix, decoded.to(z.dtype), z, self.tools.backend)

    def _adder(self, matrix: Csr) -> Callable[[torch.Tensor, torch.Tensor], None] | None:
        """The kernel that adds ``matrix`` times the rows in a wire, if that is faster than decoding them first."""
        groups = self.layouts[1].groups
        if len(groups) != 1 or not fuses(groups[0].bits, matrix, self.width):
            return None
        return adder(self._kernels, matrix, groups[0].payload_at, groups[0].params_at, groups[0].bits, self.width)

    def decode(self, wire: torch.Tensor, layout: Layout, out: torch.Tensor, *, accumulate: bool = False) -> None:
        """Overwrite ``out`` (rows, F) with the rows in ``wire``, or add them."""
        for group in layout.groups:
            places = wire.view(-1), group.payload_at, group.params_at
            self._kernels.decode_rows(*places, group.bits, out, group.rows, accumulate)

    @property
    def num_sent(self) -> int:
        """Number of rows to send, s."""
        return _rows(self.layouts[0])

    @property
    def num_received(self) -> int:
        """Number of rows to receive, r."""
        return _rows(self.layouts[1])

    def received_rows(self, wire: torch.Tensor) -> torch.Tensor:
        """(r, F) float32 decoded rows, in new memory."""
        rows = buffers.empty(self.num_received, self.width, torch.float32, wire.device)
        self.decode(wire, self.layouts[1], rows)
        return rows

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """The bytes, and the place of each row in them."""
        layout = self.layouts[1].to(torch.device("cpu"))
        groups = [(group.bits, group.rows, group.payload_at, group.params_at) for group in layout.groups]
        return {"bytes": wire.to("cpu", copy=True), "groups": groups, "width": self.width}

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """Add the ranges that follow from the rows' parameters."""
        ranges.add(wire, self.layouts[0], self.width)

    def new_differences(self) -> Differences | None:
        """None: this codec keeps no rows."""
        return None


def _rows(layout: Layout) -> int:
    return sum(group.rows.numel() for group in layout.groups)


def fuses(bits: int, matrix: Csr, width: int) -> bool:
    """Return whether it is faster to add rows straight from their codes than to decode them to a matrix first.

    Measured with the native kernels on a core with AVX-512: at 2 bits and 256 columns, adding from codes takes half the time,
    because each entry of the matrix reads 2 bits a value instead of 32. But a row is decoded again for each entry that names it,
    which costs more if codes are wide, rows are narrow, or the decoded rows would fit into a cache.
    """
    entries, rows = matrix.num_entries, matrix.num_cols
    if bits <= 4:
        return reads_codes_faster(bits, rows, width) or entries <= 4 * rows
    if bits == 8:
        return reads_codes_faster(bits, rows, width) or entries <= rows
    return entries <= (4 if bits == 16 else 1) * rows


def reads_codes_faster(bits: int, rows: int, width: int) -> bool:
    """Return whether it is faster to add up the codes of ``rows`` rows than decoded rows, however many entries name one."""
    if width < 64 or bits > INT8_BITS:
        return False
    return bits <= 4 or rows * width * 4 > _CACHED_BYTES
