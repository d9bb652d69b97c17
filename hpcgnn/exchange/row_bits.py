"""The bit-width of each row of an exchange, and the ranges of rows as quantized messages show them. Shapes: s rows sent, r rows
received."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS
from hpcgnn.exchange.layout import Layout, make_layout
from hpcgnn.kernels.packing import PARAMS_BYTES


class RowBits:
    """The bit-width of each row, one of ``MESSAGE_BITS``; ``sent`` (s,) and ``received`` (r,) uint8.

    layouts: layouts of the messages to and from this rank, by number of columns; made when they are first needed.
    """

    def __init__(self, sent: np.ndarray, received: np.ndarray) -> None:
        self.sent, self.received = sent.astype(np.uint8), received.astype(np.uint8)
        self.layouts: dict[int, tuple[Layout, Layout]] = {}

    def make_layouts(
        self, counts: tuple[np.ndarray, np.ndarray], width: int, torch_device: torch.device
    ) -> tuple[Layout, Layout]:
        """The layouts of both messages, for ``counts`` (P,) of rows to and from each rank and rows of ``width`` values."""
        sent, received = counts
        layouts = make_layout(sent, self.sent, width), make_layout(received, self.received, width)
        return layouts[0].to(torch_device), layouts[1].to(torch_device)

    @classmethod
    def uniform(cls, bits: int, sent: int, received: int) -> RowBits:
        """The same bit-width for ``sent`` rows to send and ``received`` rows to receive."""
        return cls(np.full(sent, bits, np.uint8), np.full(received, bits, np.uint8))

    def counts(self) -> np.ndarray:
        """(len(MESSAGE_BITS),) int64 number of rows that are sent with each bit-width."""
        return np.bincount(self.sent, minlength=max(MESSAGE_BITS) + 1)[list(MESSAGE_BITS)].astype(np.int64)


class RowRanges:
    """The range of each row's values, largest minus least, in the messages since the last :meth:`take`.

    squares: (s,) float32 sum of the squared ranges over messages. messages: number of messages. width: number of columns F, None
    before the first message.
    """

    def __init__(self, rows: int, torch_device: torch.device) -> None:
        self.squares, self.messages = torch.zeros(rows, device=torch_device), 0
        self.width: int | None = None

    def add(self, wire: torch.Tensor, layout: Layout, width: int) -> None:
        """Add the ranges of an encoded message: a row's range is its scale times its number of steps. Rows of 16 and 32 bits have
        no scale, and add nothing."""
        words = wire.view(-1)[: wire.numel() // PARAMS_BYTES * PARAMS_BYTES].view(torch.int32)
        for group in layout.groups:
            if group.bits in QUANTIZED_BITS:
                # A word is two bfloat16, zero-point and scale; its upper half is that of the scale as float32.
                scale = (words[group.params_at // PARAMS_BYTES] & -0x10000).view(torch.float32)
                self.squares.index_add_(0, group.rows, (scale * (2**group.bits - 1)) ** 2)
        self.messages, self.width = self.messages + 1, width

    def take(self) -> np.ndarray:
        """(s,) float64 mean squared range of each row; starts again from zero."""
        mean = self.squares.double().cpu().numpy() / max(self.messages, 1)
        self.squares, self.messages = torch.zeros_like(self.squares), 0
        return mean
