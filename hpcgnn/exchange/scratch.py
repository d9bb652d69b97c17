"""Memory for rows and messages, allocated once and used by all exchanges in turn."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import torch

from hpcgnn.exchange.passes import Slot
from hpcgnn.kernels import buffers


class Use(Enum):
    """The use of a piece of memory."""

    ROWS_TO_SEND = auto()
    SENT_BYTES = auto()
    RECEIVED_BYTES = auto()
    RECEIVED_ROWS = auto()


class Place(NamedTuple):
    """Key of one piece of memory. slot: the only slot that uses it; None: all exchanges use it in turn. turn: 0 or 1 where
    messages are received into two pieces alternately."""

    use: Use
    slot: Slot | None = None
    turn: int = 0


class Scratch:
    """Uninitialised memory of one device, by place; a piece grows when a larger one is requested.

    allocations: number of pieces that were allocated so far; while it stays, memory that was handed out is that of its place.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device, self.allocations = torch_device, 0
        self._pieces: dict[Place, torch.Tensor] = {}

    def bytes(self, place: Place, items: int, item_bytes: int) -> torch.Tensor:
        """The memory of ``place`` as (items, item_bytes) uint8."""
        num_bytes = items * item_bytes
        if place not in self._pieces or self._pieces[place].numel() < num_bytes:
            self.allocations += 1
            self._pieces[place] = buffers.empty(1, num_bytes, torch.uint8, self.torch_device).view(-1)
        return self._pieces[place][:num_bytes].view(items, item_bytes)

    def rows(self, place: Place, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The memory of ``place`` as (rows, width) of ``dtype``."""
        return self.bytes(place, rows, width * dtype.itemsize).view(-1).view(dtype).view(rows, width)
