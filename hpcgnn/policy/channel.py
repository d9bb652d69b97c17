"""An exchange of a model, and what policies may ask about the rows that it moves. Shapes: s rows sent, r rows received."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpcgnn.comm import Exchange


@dataclass(frozen=True)
class Channel:
    """One layer's exchange in one direction.

    square_weights: gives (s,) float64, for each row sent the sum of squares of the weights with which its receiver adds it to
    other rows (AdaQP's sum of alpha squared). degrees: gives (s,) and (r,) int64, the in-degree in the whole graph of what
    each row stands for: of its source, or, if it was summed for one destination before it travels, of that one. Both are
    collective.
    """

    exchange: Exchange
    square_weights: Callable[[], np.ndarray]
    degrees: Callable[[], tuple[np.ndarray, np.ndarray]]

    @property
    def name(self) -> str:
        """The exchange's."""
        return self.exchange.name


@dataclass(frozen=True)
class Observation:
    """The observation of an epoch, the same on every rank.

    loss: mean over the nodes that it is on. seconds: of the training step on the slowest rank, by the clock. drift: for
    exchanges in which new rows came, d of PipeQS' Eq. 6 over all ranks' rows, and how many epochs apart the two compared
    messages were sent. late: exchanges with a message of this epoch that had not come to some rank when the gradients were
    reduced, where a policy asks.
    """

    epoch: int
    loss: float
    seconds: float
    drift: dict[str, tuple[float, int]]
    late: list[str] = field(default_factory=list)
