"""An aggregator for features that never change."""

from __future__ import annotations

import torch

from hpcgnn.exchange import Exchange, Messages
from hpcgnn.nn.aggregate import Aggregator


class KeptAggregator:
    """Aggregates features that never change once, with float32 messages, and keeps the (n, F) result.

    It takes the place of an :class:`Aggregator` in a layer whose input needs no gradient.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        exchange = aggregator.exchange
        shared = exchange.messages
        self._messages = Messages(
            shared.world, timings=shared.timings, device=shared.device, transport=shared.transport
        )
        counts = (exchange.send_counts, exchange.receive_counts)
        exact = Exchange(self._messages, *counts, backend=aggregator.backend, links=exchange.links)
        self._aggregator = aggregator.over(exact)
        self.backend, self.exchange = aggregator.backend, exchange
        self._features: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(n, F) aggregated features. Collective if the features are not those of the last call."""
        return self.begin(x).finish()

    def begin(self, x: torch.Tensor) -> KeptAggregator:
        """See :meth:`Aggregator.begin`."""
        if self._features is not x:
            with torch.no_grad():
                self._features, self._kept = x, self._aggregator(x)
            traffic = self._messages.traffic
            self.exchange.messages.traffic.take_bytes(traffic)
            nonfinite = torch.tensor([float(traffic.nonfinite_count())])
            self._messages.raise_if_nonfinite(float(self._messages.world.allreduce(nonfinite)))
        return self

    def finish(self) -> torch.Tensor:
        """See :meth:`PendingAggregation.finish`."""
        assert self._kept is not None
        return self._kept
