"""Codecs, which turn rows of floats into the bytes that travel, and back.

Shapes: s rows sent, r rows received, F columns, n owned nodes.

A codec holds no data of a message. Each call is given the message's bytes, a *wire* of (items, item_bytes) uint8, and the rows
that delta coding keeps. So one codec serves all messages of an exchange, fresh and stale, until its bit-widths change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.typed import INT8_BITS
from hpcgnn.exchange.layout import BLOCK_BYTES, Group, Layout, RowRanges
from hpcgnn.exchange.passes import Scratch, ScratchKey, ScratchUse
from hpcgnn.exchange.traffic import Timings
from hpcgnn.kernels import Csr, buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.fusing import adds_from_codes
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.messages import (
    MESSAGES,
    DeviceCount,
    Encode,
    MessageKernels,
    adder,
    decode_codes,
    encode_codes,
    encoder,
)
from hpcgnn.kernels.spmm import multiply
from hpcgnn.world.transport import PieceLayout


@dataclass(eq=False)
class Differences:
    """The rows to which delta coding adds differences."""

    sent: Tensor  # (s, F) float32 this rank's copy of the rows that the receivers hold
    received: Tensor  # (r, F) float32 the rows that this rank holds


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows that are 8-bit integers already."""

    rows: Int8Rows  # (n, F)
    sources: Tensor  # (s,) int64 number in ``rows`` of each row to send; -1 for a row that is a sum of several


@dataclass(frozen=True)
class CodecTools:
    """Tools of codecs."""

    timings: Timings
    backend: str  # of the kernels
    scratch: Scratch  # for decoded rows


class Codec(ABC):
    """One encoding of rows as bytes."""

    sends_rows_as_they_are: bool = False  # whether the wire is the memory of the rows to send
    sends_int8_rows: bool = False  # whether some rows travel as 8-bit integers, and can be such integers already
    sends_other_rows: bool = True  # whether some rows travel in another form
    send_counts: np.ndarray  # (P,) int64 number of items to each rank
    receive_counts: np.ndarray  # and from each rank
    item_bytes: int = BLOCK_BYTES  # bytes of an item, which MPI counts
    route: PieceLayout  # of the items to other ranks; codecs that only decode have none

    def __init__(self, tools: CodecTools) -> None:
        self.tools = tools
        self.quantizing = tools.timings.measure("quantization_seconds")
        self.aggregating = tools.timings.measure("aggregation_seconds")

    @abstractmethod
    def encode(
        self, rows: Tensor, wire: Tensor, key: int, differences: Differences | None, given: QuantizedRows | None
    ) -> DeviceCount:
        """Fill ``wire`` from ``rows`` (s, F), with rounding noise of ``key``; return a number above 0 if a row has a NaN
        or an infinity, else 0. A codec with :attr:`sends_int8_rows` sends ``given`` rows unchanged.
        """

    @abstractmethod
    def add_received(self, wire: Tensor, differences: Differences | None, matrix: Csr, z: Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, r) times the rows in ``wire``."""

    def received_rows(self, wire: Tensor) -> Tensor:
        """(r, F) the received rows as numbers: in the wire's own memory if that holds numbers, else in new memory."""
        raise AssertionError("a difference is no row")  # settings that need received rows are refused with delta coding

    def received_codes(self, wire: Tensor, out: Int8Rows) -> bool:
        """Write the rows in ``wire`` to ``out`` (r, F); False if some of them are not 8-bit integers of this form."""
        return False

    def received_state(self, wire: Tensor) -> dict[str, Any]:
        """The received bytes for a checkpoint, in new memory. Rows restored from them give the same bits in later sums."""
        return {"rows": self.received_rows(wire).to("cpu", copy=True)}

    def add_ranges(self, wire: Tensor, ranges: RowRanges) -> None:  # noqa: B027 - most wires have none
        """Add the ranges of the rows in an encoded wire to ``ranges``, if the wire has them."""

    def new_differences(self) -> Differences | None:
        """The rows with which delta coding begins; None for codecs that keep no rows."""
        return None


class PlainCodec(Codec):
    """Rows of 32 bits a value, or 64 in double precision. An item is a row.

    counts: (P,) int64 rows to each rank, and from each rank. width: number of columns F.
    """

    sends_rows_as_they_are = True

    def __init__(
        self, counts: tuple[np.ndarray, np.ndarray], width: int, dtype: torch.dtype, tools: CodecTools
    ) -> None:
        super().__init__(tools)
        self.send_counts, self.receive_counts = counts
        self.item_bytes = width * dtype.itemsize
        self._width, self._dtype = width, dtype

    def encode(
        self, rows: Tensor, wire: Tensor, key: int, differences: Differences | None, given: QuantizedRows | None
    ) -> DeviceCount:
        """Look for NaN and infinities only, because the rows are the wire. Returns 1 if any row has one, else 0."""
        if rows.numel() == 0:
            return 0
        with self.aggregating:
            smallest, largest = torch.aminmax(rows)
            if rows.is_cpu:  # two numbers: torch's functions of them would take longer than the search
                return int(not (isfinite(smallest.item()) and isfinite(largest.item())))
            return (~(smallest.isfinite() & largest.isfinite())).long()

    def add_received(self, wire: Tensor, differences: Differences | None, matrix: Csr, z: Tensor) -> None:
        with self.aggregating:
            multiply(matrix, self.received_rows(wire).to(z.dtype), z, self.tools.backend)

    def received_rows(self, wire: Tensor) -> Tensor:
        return wire.view(-1).view(self._dtype).view(wire.shape[0], self._width)


class PackedCodec(Codec):
    """Rows of values of 1, 2, 4, 8, 16 or 32 bits; each row has its own bit-width. An item is a block of 64 bytes.

    layouts: of the wires to and from this rank. width: number of columns F.
    """

    def __init__(self, layouts: tuple[Layout, Layout], width: int, tools: CodecTools) -> None:
        super().__init__(tools)
        self.layouts, self.width = layouts, width
        self.send_counts, self.receive_counts = (layout.blocks for layout in layouts)
        of_whole_rows = {group.bits if group.columns is None else None for group in layouts[0].groups}
        self.sends_int8_rows, self.sends_other_rows = INT8_BITS in of_whole_rows, bool(of_whole_rows - {INT8_BITS})
        self.num_sent, self.num_received = (layout.num_rows for layout in layouts)
        self._divisions: dict[Tensor | None, tuple[list[Encode], list[tuple[Group, Tensor]]]] = {}
        self._added_by: tuple[Csr, Callable[[Tensor, Tensor], None] | None] | None = None

    @cached_property
    def _kernels(self) -> MessageKernels:
        """The kernels of messages on the device of the layouts, whose offsets and rows are right by construction."""
        return choose(MESSAGES, self.tools.backend, x=torch.empty(0, device=self.layouts[0].padding.device))

    def encode(
        self, rows: Tensor, wire: Tensor, key: int | None, differences: Differences | None, given: QuantizedRows | None
    ) -> DeviceCount:
        """The noise is a function of ``key``, the number of the row among all rows sent, and the column; None: no noise."""
        flat, sources = wire.view(-1), None if given is None else given.sources
        nonfinite: DeviceCount = 0
        with self.quantizing:
            rows = rows.float()
            flat.index_fill_(0, self.layouts[0].padding, 0)
            if sources not in self._divisions:
                self._divisions[sources] = self._divided(sources)
            encoders, given_groups = self._divisions[sources]
            for encode in encoders:
                nonfinite += encode(rows, key, flat)
            for group, numbers in given_groups:
                assert given is not None
                places = flat, group.payload_at, group.params_at
                nonfinite += encode_codes(given.rows, numbers, *places, backend=self.tools.backend)
        return nonfinite

    def _divided(self, sources: Tensor | None) -> tuple[list[Encode], list[tuple[Group, Tensor]]]:
        """The kernels that encode rows, and the groups of rows that are given, each with their (n,) numbers among the given rows.
        sources: see :class:`QuantizedRows`.
        """
        groups, given_groups = list(self.layouts[0].groups), []
        for place, group in enumerate(groups):
            if sources is not None and group.bits == INT8_BITS:
                numbers = sources[group.rows]
                given_groups.append((group.of(numbers >= 0), numbers[numbers >= 0]))
                groups[place] = group.of(numbers < 0)
        encoders = [self._encoder(each) for each in groups if each.rows.numel()]
        return encoders, [each for each in given_groups if each[1].numel()]

    def _encoder(self, group: Group) -> Encode:
        """The kernel that encodes the rows of ``group``."""
        places, columns = (group.rows, group.bits, group.payload_at, group.params_at), group.columns
        if columns is None:
            return encoder(self._kernels, *places, self.width)
        encode = encoder(self._kernels, *places, columns.stop - columns.start)
        return lambda rows, key, wire: encode(rows[:, columns].contiguous(), key, wire)

    def received_codes(self, wire: Tensor, out: Int8Rows) -> bool:
        groups = self.layouts[1].groups
        if any(group.bits != INT8_BITS for group in groups):
            return False
        for group in groups:
            places = wire.view(-1), group.payload_at, group.params_at
            with self.quantizing:
                others = decode_codes(*places, out, group.rows, backend=self.tools.backend)
            if isinstance(others, int) and others:  # GPUs send no other rows, and reading a count there would wait
                return False
        return True

    def add_received(self, wire: Tensor, differences: Differences | None, matrix: Csr, z: Tensor) -> None:
        if z.dtype == torch.float32:
            if self._added_by is None or self._added_by[0] is not matrix:
                self._added_by = matrix, self._adder(matrix)
            if (add := self._added_by[1]) is not None:
                with self.aggregating:
                    add(wire.view(-1), z)
                return
        with self.quantizing:
            decoded = self.tools.scratch.rows(
                ScratchKey(ScratchUse.RECEIVED_ROWS), self.num_received, self.width, torch.float32
            )
            self.decode(wire, self.layouts[1], decoded)
        with self.aggregating:
            multiply(matrix, decoded.to(z.dtype), z, self.tools.backend)

    def _adder(self, matrix: Csr) -> Callable[[Tensor, Tensor], None] | None:
        """The kernel that adds ``matrix`` times the rows in a wire, if that is faster than decoding them first."""
        groups = self.layouts[1].groups
        if len(groups) != 1 or not fuses(groups[0].bits, matrix, self.width):  # wide columns are a second group
            return None
        return adder(self._kernels, matrix, groups[0].payload_at, groups[0].params_at, groups[0].bits, self.width)

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, *, accumulate: bool = False) -> None:
        """Overwrite ``out`` (rows, F) with the rows in ``wire``, or add them."""
        for group in layout.groups:
            places, columns = (wire.view(-1), group.payload_at, group.params_at), group.columns
            if columns is None:
                self._kernels.decode_rows(*places, group.bits, out, group.rows, accumulate)
                continue
            part = out[:, columns].contiguous()
            self._kernels.decode_rows(*places, group.bits, part, group.rows, accumulate)
            out[:, columns] = part

    def received_rows(self, wire: Tensor) -> Tensor:
        rows = buffers.empty(self.num_received, self.width, torch.float32, wire.device)
        self.decode(wire, self.layouts[1], rows)
        return rows

    def received_state(self, wire: Tensor) -> dict[str, Any]:
        if any(group.columns is not None for group in self.layouts[1].groups):
            return super().received_state(wire)
        layout = self.layouts[1].to(torch.device("cpu"))
        groups = [(group.bits, *group.tensors) for group in layout.groups]
        return {"bytes": wire.to("cpu", copy=True), "groups": groups, "width": self.width}

    def add_ranges(self, wire: Tensor, ranges: RowRanges) -> None:
        ranges.add(wire, self.layouts[0], self.width)


class DeltaCodec(Codec):
    """Packed differences to the rows that the receiver holds (error feedback).

    Both sides keep the sum of all differences sent. So the error of rounding in one epoch is part of the next epoch's
    difference. As training converges, differences shrink, and with them the steps of the grid.
    """

    def __init__(self, packed: PackedCodec) -> None:
        super().__init__(packed.tools)
        self._packed = packed
        self.send_counts, self.receive_counts = packed.send_counts, packed.receive_counts

    def encode(
        self, rows: Tensor, wire: Tensor, key: int, differences: Differences | None, given: QuantizedRows | None
    ) -> DeviceCount:
        """Encode the differences of ``rows`` to the rows that the receivers hold, and add the decoded differences to these rows.

        There is no noise: with steps as wide as a row's range, at 1 bit, errors of stochastic rounding would grow.
        """
        assert differences is not None
        packed = self._packed
        with self.quantizing:
            difference = rows.float().sub_(differences.sent)
        nonfinite = packed.encode(difference, wire, None, None, None)
        with self.quantizing:
            packed.decode(wire, packed.layouts[0], differences.sent, accumulate=True)
        return nonfinite

    def add_received(self, wire: Tensor, differences: Differences | None, matrix: Csr, z: Tensor) -> None:
        assert differences is not None
        packed = self._packed
        with self.quantizing:
            packed.decode(wire, packed.layouts[1], differences.received, accumulate=True)
        with self.aggregating:
            multiply(matrix, differences.received.to(z.dtype), z, self.tools.backend)

    def add_ranges(self, wire: Tensor, ranges: RowRanges) -> None:
        self._packed.add_ranges(wire, ranges)  # those of differences, which are what is rounded

    def new_differences(self) -> Differences:
        packed, torch_device = self._packed, self.tools.scratch.torch_device
        counts = packed.num_sent, packed.num_received
        return Differences(*(torch.zeros(rows, packed.width, device=torch_device) for rows in counts))


def fuses(bits: int, matrix: Csr, width: int) -> bool:
    """Return whether it is faster to add rows straight from their codes than to decode them to a matrix first.

    On an H100, adding 1 to 16 bits from codes took 0.2 to 0.7 of the time, for 64 and 256 columns, 16,384 and 262,144 rows, and 1
    to 32 entries a row.
    """
    if matrix.device.type == "cuda":
        return (bits <= 16 and width >= 64) or matrix.num_entries <= matrix.num_cols
    return adds_from_codes(bits, matrix.num_entries, matrix.num_cols, width)


def restored(state: dict[str, Any], tools: CodecTools) -> tuple[Codec, Tensor]:
    """The codec and the received wire of a :meth:`Codec.received_state`; this codec can only decode."""
    torch_device = tools.scratch.torch_device
    if "rows" in state:
        return plain_rows(state["rows"].to(torch_device), tools)
    none, padding = np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64)
    groups = tuple(Group(*group) for group in state["groups"])
    layouts = Layout(none, (), padding).to(torch_device), Layout(none, groups, padding).to(torch_device)
    return PackedCodec(layouts, state["width"], tools), state["bytes"].to(torch_device)


def plain_rows(rows: Tensor, tools: CodecTools) -> tuple[PlainCodec, Tensor]:
    """Received rows (r, F) as a codec and its wire; this codec can only decode."""
    none = np.zeros(0, np.int64)
    return PlainCodec((none, none), rows.shape[1], rows.dtype, tools), rows.view(torch.uint8)
