"""Names of exchanges, and the state that all exchanges of one pass over a model's layers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from hpcgnn.kernels import keyed

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
    """A pass over a model's layers.

    seed: seed of the run. epoch: number of the training step, or of the last step before an evaluation. is_training: True for
    forward and backward of a training step, False for an evaluation.
    """

    seed: int = 0
    epoch: int = 0
    is_training: bool = True

    def noise_key(self, exchange: ExchangeId, call: int, rank: int) -> int:
        """The key of one message's rounding noise (:mod:`hpcgnn.kernels.messages`)."""
        epoch = self.epoch + (0 if self.is_training else _EVALUATION)
        return keyed.derive_key(self.seed, epoch, exchange.layer, call, int(exchange.is_backward), rank)


class Slot(NamedTuple):
    """Identifies rows of one exchange across passes, so that a later pass finds the rows that an earlier one kept.

    call: number of times the exchange was started before in the same step; above 0 only if a pass uses the layer more than once.
    width: number of columns.
    """

    exchange: ExchangeId
    call: int
    width: int
