"""An exchange of a model, and the facts about its rows that policies use. Shapes: s rows sent, r rows received."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpcgnn.exchange import Exchange


@dataclass(frozen=True)
class Channel:
    """The exchange of one layer in one direction.

    square_weights: a function that returns (s,) float64: for each row sent, the sum of squares of the weights with which its
    receiver adds it to other rows (AdaQP's sum of squared alpha). degrees: a function that returns (s,) and (r,) int64: for each
    row, the in-degree in the whole graph of its source node, or of its destination node if it is aggregated before sending. Both
    functions are collective.
    """

    exchange: Exchange
    square_weights: Callable[[], np.ndarray]
    degrees: Callable[[], tuple[np.ndarray, np.ndarray]]

    @property
    def name(self) -> str:
        """The name of the exchange."""
        return self.exchange.name


@dataclass(frozen=True)
class Observation:
    """The observation of an epoch, the same on every rank.

    loss: mean loss. seconds: training step on the slowest rank, by the clock. drift: for each exchange that received new rows,
    the distance d of PipeQS' Eq. 6 over the rows of all ranks, and the number of epochs between the two messages. late: the
    exchanges whose message of this epoch had not arrived at some rank when the gradients were reduced, if a policy asks.
    """

    epoch: int
    loss: float
    seconds: float
    drift: dict[str, tuple[float, int]]
    late: list[str] = field(default_factory=list)
