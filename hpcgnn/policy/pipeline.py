"""PipeGCN's schedule of stale rows."""

from __future__ import annotations

from hpcgnn.exchange.mailbox import STALE
from hpcgnn.policy.base import StalenessPolicy
from hpcgnn.policy.channel import Channel
from hpcgnn.policy.config import STALENESS_POLICIES


@STALENESS_POLICIES.register("pipeline")
class Pipeline(StalenessPolicy):
    """Every exchange uses the rows of the previous epoch; the first one waits for its own."""

    def begin(self, channels: list[Channel]) -> None:
        """Set all exchanges to stale."""
        for channel in channels:
            channel.exchange.freshness = STALE
