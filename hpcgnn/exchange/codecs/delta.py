"""The codec that sends differences to the rows that the receiver holds."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from hpcgnn.exchange.codecs.base import Codes, Differences
from hpcgnn.exchange.codecs.packed import PackedCodec
from hpcgnn.exchange.row_bits import RowRanges
from hpcgnn.kernels import Csr
from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.spmm import multiply


class DeltaCodec:
    """Packed differences to the rows that the receiver holds (error feedback).

    Both sides keep the sum of all differences sent. So the error of rounding in one epoch is part of the next epoch's
    difference. As training converges, differences shrink, and with them the steps of the grid.
    """

    sends_rows_as_they_are = False
    sends_int8_rows, sends_other_rows = False, True

    def __init__(self, packed: PackedCodec) -> None:
        self._packed = packed
        self.send_counts, self.receive_counts = packed.send_counts, packed.receive_counts
        self.item_bytes = packed.item_bytes

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """False: the received rows are differences."""
        return False

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> DeviceCount:
        """Encode the differences of ``rows`` to the rows that the receivers hold, and add the decoded differences to these rows.

        Differences are rounded without noise. Stochastic rounding moves a value by up to a step of its row's grid; at 1 bit a
        step is the row's whole range, so errors would grow. Rounding to the centre of the nearest cell leaves an error of at
        most 2**-bits of the range.
        """
        assert differences is not None
        packed, measure = self._packed, self._packed.tools.timings.measure
        with measure("quantization_seconds"):
            difference = rows.float().sub_(differences.sent)
        nonfinite = packed.encode(difference, wire, None, None)
        with measure("quantization_seconds"):
            packed.decode(wire, packed.layouts[0], differences.sent, accumulate=True)
        return nonfinite

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """Add the received differences to the rows that are kept, and post-aggregate these."""
        assert differences is not None
        packed, measure = self._packed, self._packed.tools.timings.measure
        with measure("quantization_seconds"):
            packed.decode(wire, packed.layouts[1], differences.received, accumulate=True)
        with measure("aggregation_seconds"):
            multiply(matrix, differences.received.to(z.dtype), z, packed.tools.backend)

    def received_rows(self, wire: torch.Tensor) -> NoReturn:
        """Never called: a difference is no row, and settings that need received rows are refused with delta coding."""
        raise AssertionError("a difference is no row")

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """Never called, as :meth:`received_rows`."""
        self.received_rows(wire)

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """Do nothing: the ranges of differences are not those of rows."""

    def new_differences(self) -> Differences:
        """Zeros, which the receivers hold at first."""
        packed = self._packed
        torch_device = packed.tools.scratch.torch_device
        sent, received = (
            torch.zeros(rows, packed.width, device=torch_device) for rows in (packed.num_sent, packed.num_received)
        )
        return Differences(sent, received)
