"""What an exchange needs to know of a codec. Shapes: s rows sent, r rows received, F columns, n owned nodes.

A codec holds nothing of a message: its bytes, a *wire* of (items, item_bytes) uint8, and what delta coding keeps are given to
each call. So one codec serves all messages of an exchange, fresh and stale, until its bits change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm.row_bits import RowRanges
from hpcgnn.comm.scratch import Scratch
from hpcgnn.comm.timings import Timings
from hpcgnn.kernels import Csr
from hpcgnn.kernels.contract import Count
from hpcgnn.kernels.int8 import Int8Rows


@dataclass(eq=False)
class Differences:
    """What both sides know of an exchange's rows with delta coding. sent: (s, F) float32, what the receivers hold. received:
    (r, F) float32, what this rank holds."""

    sent: torch.Tensor
    received: torch.Tensor


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows that are 8-bit integers already. rows: (n, F). sources: (s,) int64, which of them a row to send is; -1: a sum."""

    rows: Int8Rows
    sources: torch.Tensor


@dataclass(frozen=True)
class CodecTools:
    """What codecs work with. timings: where their seconds go. backend: of kernels. scratch: memory for decoded rows."""

    timings: Timings
    backend: str
    scratch: Scratch


class Codec(Protocol):
    """One way from rows to wires.

    sends_rows_as_they_are: the wire is the memory of the rows themselves, which are aggregated into it.
    send_counts, receive_counts: (P,) int64 items to and from each rank, which is what MPI counts; each of ``item_bytes``.
    """

    sends_rows_as_they_are: bool
    send_counts: np.ndarray
    receive_counts: np.ndarray
    item_bytes: int

    @property
    def takes_codes(self) -> bool:
        """Whether some rows can be sent as they are where they are 8-bit integers."""
        ...

    @property
    def takes_rows(self) -> bool:
        """Whether some rows are sent as other than 8-bit integers."""
        ...

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> Count:
        """Fill ``wire`` from ``rows`` (s, F), rounded under ``key``; returns how many rows hold a NaN or an infinity.

        given: rows that go as they are where a codec takes such.
        """
        ...

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """Write the rows in ``wire`` to ``out`` (r, F); False if some have another form than its rows."""
        ...

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, r) times the rows in ``wire``."""
        ...

    def received_rows(self, wire: torch.Tensor) -> torch.Tensor:
        """(r, F) what has come, as numbers: the wire's own memory where it is made of them, else memory of its own."""
        ...

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """What has come, as it came, for a checkpoint; in memory of its own. Later sums over it have the same bits."""
        ...

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """Note the ranges of values of the rows in a wire that was encoded, where it tells them."""
        ...

    def new_differences(self) -> Differences | None:
        """What delta coding begins with; None for codecs that keep nothing."""
        ...
