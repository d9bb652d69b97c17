"""Names of exchanges, and the state and the memory that all exchanges of one pass over a model's layers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, NamedTuple

import msgspec
import torch

from hpcgnn.kernels import buffers, keyed

_EVALUATION = 1 << 32  # added to the epoch, so that an evaluation draws other noise than the training step before it


# ExchangeId.name, as files hold it.
ExchangeName = Annotated[str, msgspec.Meta(pattern=r"^layer [1-9][0-9]*'s (boundary rows|gradients)$")]


class ExchangeId(NamedTuple):
    """One exchange of a model. layer: its number within a pass. is_backward: gradients travel."""

    layer: int
    is_backward: bool

    @property
    def name(self) -> str:
        """Name of the exchange in messages to users."""
        return f"layer {self.layer + 1}'s " + ("gradients" if self.is_backward else "boundary rows")


@dataclass(frozen=True)
class Pass:
    """A pass over a model's layers."""

    seed: int = 0  # of the run
    epoch: int = 0  # number of the training step, or of the last step before an evaluation
    is_training: bool = True  # False for an evaluation

    def noise_key(self, exchange: ExchangeId, call: int, rank: int) -> int:
        """The key of one message's rounding noise (:mod:`hpcgnn.kernels.messages`)."""
        epoch = self.epoch + (0 if self.is_training else _EVALUATION)
        return keyed.derive_key(self.seed, epoch, exchange.layer, call, int(exchange.is_backward), rank)


class Slot(NamedTuple):
    """Identifies rows of one exchange across passes, so that a later pass finds the rows that an earlier one kept."""

    layer: int
    is_backward: bool
    call: int  # number of earlier starts of the exchange in the same step: above 0 only if a pass uses the layer more than once
    width: int  # number of columns


class ScratchUse(Enum):
    """The use of a piece of memory."""

    ROWS_TO_SEND = auto()
    SENT_BYTES = auto()
    RECEIVED_BYTES = auto()
    RECEIVED_ROWS = auto()


class ScratchKey(NamedTuple):
    """Key of one piece of memory."""

    use: ScratchUse
    slot: Slot | None = None  # the only slot that uses it; None: all exchanges use it in turn
    turn: int = 0  # 0 or 1 where messages are received into two pieces alternately


class Scratch:
    """Uninitialised memory of one device, by key; a piece grows when a larger one is requested.

    allocations: number of pieces that were allocated so far; while it stays, memory that was handed out is that of its key.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device, self.allocations = torch_device, 0
        self._pieces: dict[ScratchKey, torch.Tensor] = {}

    def bytes(self, key: ScratchKey, items: int, item_bytes: int) -> torch.Tensor:
        """The memory of ``key`` as (items, item_bytes) uint8."""
        num_bytes = items * item_bytes
        if key not in self._pieces or self._pieces[key].numel() < num_bytes:
            self.allocations += 1
            self._pieces[key] = buffers.empty(1, num_bytes, torch.uint8, self.torch_device).view(-1)
        return self._pieces[key][:num_bytes].view(items, item_bytes)

    def rows(self, key: ScratchKey, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The memory of ``key`` as (rows, width) of ``dtype``."""
        return self.bytes(key, rows, width * dtype.itemsize).view(-1).view(dtype).view(rows, width)
