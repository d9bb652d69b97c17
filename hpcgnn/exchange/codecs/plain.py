"""The codec that sends rows unchanged."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
import torch

from hpcgnn.exchange.codecs.base import CodecTools, Codes, Differences
from hpcgnn.exchange.row_bits import RowRanges
from hpcgnn.kernels import Csr
from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.spmm import multiply


class PlainCodec:
    """Rows of 32 bits a value, or 64 in double precision. An item is a row.

    counts: (P,) int64 rows to each rank, and from each rank. width: number of columns F.
    """

    sends_rows_as_they_are = True
    sends_int8_rows, sends_other_rows = False, True

    def __init__(
        self, counts: tuple[np.ndarray, np.ndarray], width: int, dtype: torch.dtype, tools: CodecTools
    ) -> None:
        self.send_counts, self.receive_counts = counts
        self.item_bytes = width * dtype.itemsize
        self._width, self._dtype, self._backend = width, dtype, tools.backend
        self._aggregating = tools.timings.measure("aggregation_seconds")

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> DeviceCount:
        """Look for NaN and infinities only, because the rows are the wire. Returns 1 if any row has one, else 0."""
        if rows.numel() == 0:
            return 0
        with self._aggregating:
            smallest, largest = torch.aminmax(rows)
            if rows.is_cpu:  # two numbers: torch's functions of them would take longer than the search
                return int(not (isfinite(smallest.item()) and isfinite(largest.item())))
            return (~(smallest.isfinite() & largest.isfinite())).long()

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """Post-aggregate the received rows."""
        with self._aggregating:
            multiply(matrix, self.received_rows(wire).to(z.dtype), z, self._backend)

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """False: the received rows are floats."""
        return False

    def received_rows(self, wire: torch.Tensor) -> torch.Tensor:
        """(r, F) the wire's own memory."""
        return wire.view(-1).view(self._dtype).view(wire.shape[0], self._width)

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """The received rows."""
        return {"rows": self.received_rows(wire).to("cpu", copy=True)}

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """Do nothing: rows that travel unchanged have no parameters to tell their ranges."""

    def new_differences(self) -> None:
        """None: this codec keeps no rows."""
