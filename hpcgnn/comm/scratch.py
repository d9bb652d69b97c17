"""Memory for rows and messages, allocated once and used by one exchange after the other."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import torch

from hpcgnn.comm.passes import Slot
from hpcgnn.kernels import buffers


class Use(Enum):
    """What memory is for."""

    ROWS_TO_SEND = auto()
    SENT_BYTES = auto()
    RECEIVED_BYTES = auto()
    RECEIVED_ROWS = auto()


class Place(NamedTuple):
    """One piece of memory. slot: whose alone it is; None: all exchanges', one after the other. turn: 0 or 1 where messages come
    to two pieces by turns."""

    use: Use
    slot: Slot | None = None
    turn: int = 0


class Scratch:
    """Uninitialised memory of a device by place; a piece grows when more is asked for."""

    def __init__(self, where: torch.device) -> None:
        self.where = where
        self._pieces: dict[Place, torch.Tensor] = {}

    def bytes(self, place: Place, items: int, item_bytes: int) -> torch.Tensor:
        """(items, item_bytes) uint8."""
        num_bytes = items * item_bytes
        if place not in self._pieces or self._pieces[place].numel() < num_bytes:
            self._pieces[place] = buffers.empty(1, num_bytes, torch.uint8, self.where).view(-1)
        return self._pieces[place][:num_bytes].view(items, item_bytes)

    def rows(self, place: Place, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(rows, width) of ``dtype``."""
        return self.bytes(place, rows, width * dtype.itemsize).view(-1).view(dtype).view(rows, width)
