"""The interface between an exchange and its codec. Shapes: s rows sent, r rows received, F columns, n owned nodes.

A codec holds no data of a message. Each call is given the message's bytes, a *wire* of (items, item_bytes) uint8, and the rows
that delta coding keeps. So one codec serves all messages of an exchange, fresh and stale, until its bit-widths change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.exchange.row_bits import RowRanges
from hpcgnn.exchange.scratch import Scratch
from hpcgnn.exchange.timings import Timings
from hpcgnn.kernels import Csr
from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.kernels.int8 import Int8Rows


@dataclass(eq=False)
class Differences:
    """The rows to which delta coding adds differences. sent: (s, F) float32 this rank's copy of the rows that the receivers hold.
    received: (r, F) float32 the rows that this rank holds."""

    sent: torch.Tensor
    received: torch.Tensor


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows that are 8-bit integers already. rows: (n, F). sources: (s,) int64 number in ``rows`` of each row to send; -1 for a
    row that is a sum of several."""

    rows: Int8Rows
    sources: torch.Tensor


@dataclass(frozen=True)
class CodecTools:
    """Tools of codecs. timings: seconds of each phase. backend: backend of the kernels. scratch: memory for decoded rows."""

    timings: Timings
    backend: str
    scratch: Scratch


class Codec(Protocol):
    """One encoding of rows as bytes.

    sends_rows_as_they_are: whether the wire is the memory of the rows themselves, so that rows are aggregated into the wire.
    send_counts, receive_counts: (P,) int64 number of items to and from each rank; an item has ``item_bytes`` bytes, and MPI
    counts items.
    """

    sends_rows_as_they_are: bool
    send_counts: np.ndarray
    receive_counts: np.ndarray
    item_bytes: int

    @property
    def sends_int8_rows(self) -> bool:
        """Return whether some rows travel as 8-bit integers, so that rows which are such integers already can be sent
        unchanged.
        """
        ...

    @property
    def sends_other_rows(self) -> bool:
        """Return whether some rows travel in another form than 8-bit integers."""
        ...

    def encode(
        self,
        rows: torch.Tensor,
        wire: torch.Tensor,
        key: int,
        differences: Differences | None,
        given: Codes | None = None,
    ) -> DeviceCount:
        """Fill ``wire`` from ``rows`` (s, F), with rounding noise of ``key``; return a number above 0 if a row has a NaN
        or an infinity, else 0.

        given: rows that are 8-bit integers already; a codec with :attr:`sends_int8_rows` sends them unchanged.
        """
        ...

    def received_codes(self, wire: torch.Tensor, out: Int8Rows) -> bool:
        """Write the rows in ``wire`` to ``out`` (r, F); False if some of them are not 8-bit integers of this form."""
        ...

    def add_received(self, wire: torch.Tensor, differences: Differences | None, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, r) times the rows in ``wire``."""
        ...

    def received_rows(self, wire: torch.Tensor) -> torch.Tensor:
        """(r, F) the received rows as numbers: in the wire's own memory if that holds numbers, else in new memory."""
        ...

    def received_state(self, wire: torch.Tensor) -> dict[str, Any]:
        """The received bytes for a checkpoint, in new memory. Rows restored from them give the same bits in later sums."""
        ...

    def add_ranges(self, wire: torch.Tensor, ranges: RowRanges) -> None:
        """Add the ranges of the rows in an encoded wire to ``ranges``, if the wire has them."""
        ...

    def new_differences(self) -> Differences | None:
        """The rows with which delta coding begins; None for codecs that keep no rows."""
        ...
