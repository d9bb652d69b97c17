"""Bits of each row of an exchange, and what a quantized message tells of its rows. Shapes: s rows sent, r rows received."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm.layout import Layout, make_layout
from hpcgnn.kernels.packing import MESSAGE_BITS, PARAMS_BYTES, QUANTIZED_BITS


class RowBits:
    """sent: (s,) and received: (r,) uint8, one of ``MESSAGE_BITS`` for each row.

    layouts: of the messages to and from this rank, by width; made when they are first needed.
    """

    def __init__(self, sent: np.ndarray, received: np.ndarray) -> None:
        self.sent, self.received = sent.astype(np.uint8), received.astype(np.uint8)
        self.layouts: dict[int, tuple[Layout, Layout]] = {}

    def make_layouts(
        self, counts: tuple[np.ndarray, np.ndarray], width: int, where: torch.device
    ) -> tuple[Layout, Layout]:
        """The layouts for (P,) rows to and from each rank, of ``width`` values."""
        sent, received = counts
        return make_layout(sent, self.sent, width).to(where), make_layout(received, self.received, width).to(where)

    @classmethod
    def uniform(cls, bits: int, sent: int, received: int) -> RowBits:
        """The same for so many rows."""
        return cls(np.full(sent, bits, np.uint8), np.full(received, bits, np.uint8))

    def counts(self) -> np.ndarray:
        """(len(MESSAGE_BITS),) int64 rows sent with each number of bits."""
        return np.bincount(self.sent, minlength=max(MESSAGE_BITS) + 1)[list(MESSAGE_BITS)].astype(np.int64)


class RowRanges:
    """The ranges of values, largest less least, that rows had in the messages since the last :meth:`take`.

    squares: (s,) float32 sums of their squares. messages: how many. width: columns F, None before the first message.
    """

    def __init__(self, rows: int, where: torch.device) -> None:
        self.squares, self.messages = torch.zeros(rows, device=where), 0
        self.width: int | None = None

    def add(self, wire: torch.Tensor, layout: Layout, width: int) -> None:
        """Look at a message that was encoded: a row's scale is its range in steps. Rows of 16 and 32 bits tell nothing."""
        words = wire.view(-1)[: wire.numel() // PARAMS_BYTES * PARAMS_BYTES].view(torch.int32)
        for group in layout.groups:
            if group.bits in QUANTIZED_BITS:
                # of two bfloat16, zero-point and scale, the latter is the upper half of the float32 that it stands for
                scale = (words[group.params_at // PARAMS_BYTES] & -0x10000).view(torch.float32)
                self.squares.index_add_(0, group.rows, (scale * (2**group.bits - 1)) ** 2)
        self.messages, self.width = self.messages + 1, width

    def take(self) -> np.ndarray:
        """(s,) float64 mean squares of ranges; starts again."""
        mean = self.squares.double().cpu().numpy() / max(self.messages, 1)
        self.squares, self.messages = torch.zeros_like(self.squares), 0
        return mean
