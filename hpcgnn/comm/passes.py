"""What the exchanges of one pass over a model's layers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from hpcgnn.kernels import keyed

_EVALUATION = 1 << 32  # beside the epoch, so that an evaluation rounds otherwise than the training step before it


# What ExchangeId.name says, in files.
ExchangeName = Annotated[str, msgspec.Meta(pattern=r"^layer [1-9][0-9]*'s (boundary rows|gradients)$")]


@dataclass(frozen=True)
class ExchangeId:
    """One exchange of a model. layer: its number within a pass. is_backward: gradients travel."""

    layer: int
    is_backward: bool

    @property
    def name(self) -> str:
        """As people are told of it."""
        return f"layer {self.layer + 1}'s " + ("gradients" if self.is_backward else "boundary rows")


@dataclass(frozen=True)
class Pass:
    """seed: of the run. epoch: the training step, or the last one before an evaluation. is_training: forward and backward of a
    step; False for an evaluation."""

    seed: int = 0
    epoch: int = 0
    is_training: bool = True

    def noise_key(self, exchange: ExchangeId, call: int, rank: int) -> int:
        """What decides about the rounding noise of one message (:func:`hpcgnn.kernels.messages.encode_rows`)."""
        epoch = self.epoch + (0 if self.is_training else _EVALUATION)
        return keyed.derive_key(self.seed, epoch, exchange.layer, call, int(exchange.is_backward), rank)


@dataclass(frozen=True)
class Slot:
    """The rows of one exchange in a pass, by which what is kept of them is found again in the next one.

    call: how often the exchange was started before in this step; above 0 only in layers used twice. width: columns of a row.
    """

    exchange: ExchangeId
    call: int
    width: int
