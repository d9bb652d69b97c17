"""Differences to what the receiver has."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from hpcgnn.comm.codecs.base import Codes, Differences
from hpcgnn.comm.codecs.packed import PackedCodec
from hpcgnn.comm.row_bits import RowRanges
from hpcgnn.kernels import Csr, spmm
from hpcgnn.kernels.contract import Count
from hpcgnn.kernels.int8 import Int8Rows


class DeltaCodec:
    """Packed differences to what the receiver has already (error-compensated messages).

    Both sides keep the sum of all that was sent, so that what rounding lost in one epoch is part of the next one's
    difference. As training converges differences shrink, and with them the steps of the grid.
    """

    sends_rows_as_they_are = False
    takes_codes, takes_rows = False, True

    def __init__(self, packed: PackedCodec) -> None:
        self._packed = packed
        self.send_counts, self.receive_counts = packed.send_counts, packed.receive_counts
        self.item_bytes = packed.item_bytes

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """There are none: what has come is a difference."""
        return False

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> Count:
        """Overwrites ``rows`` with the differences; then takes them as the receivers will.

        Without noise: at random, a value moves by up to a step of its row's grid, and at 1 bit that is the row's whole
        range, so that errors would grow. To the nearest cell's centre leaves 2**-bits of the range.
        """
        assert differences is not None
        packed, measure = self._packed, self._packed.tools.timings.measure
        with measure("quantization_seconds"):
            difference = rows.float().sub_(differences.sent)
        trouble = packed.encode(difference, wire, None, None)
        with measure("quantization_seconds"):
            packed.decode(wire, packed.layouts[0], differences.sent, accumulate=True)
        return trouble

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """Take the differences, then post-aggregate what is kept."""
        assert differences is not None
        packed, measure = self._packed, self._packed.tools.timings.measure
        with measure("quantization_seconds"):
            packed.decode(wire, packed.layouts[1], differences.received, accumulate=True)
        with measure("aggregation_seconds"):
            spmm(matrix, differences.received.to(z.dtype), out=z, backend=packed.tools.backend)

    def received_rows(self, wire: torch.Tensor) -> NoReturn:
        """Differences are no rows: settings that need rows are refused with delta coding."""
        raise AssertionError("a difference is no row")

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """See :meth:`received_rows`."""
        self.received_rows(wire)

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """The ranges of differences tell nothing of the rows'."""

    def new_differences(self) -> Differences:
        """Receivers hold zeros."""
        packed = self._packed
        where = packed.tools.scratch.where
        sent, received = (
            torch.zeros(rows, packed.width, device=where) for rows in (packed.num_sent, packed.num_received)
        )
        return Differences(sent, received)
