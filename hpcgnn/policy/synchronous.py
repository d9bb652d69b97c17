"""Fresh rows in every epoch, without a policy of staleness."""

from __future__ import annotations

from hpcgnn.exchange.mailbox import FRESH
from hpcgnn.policy.base import StalenessPolicy
from hpcgnn.policy.channel import Channel
from hpcgnn.policy.config import OFF, STALENESS_POLICIES


@STALENESS_POLICIES.register(OFF)
class Synchronous(StalenessPolicy):
    """Every exchange waits for the rows of its own epoch."""

    reuses_rows = False
    allows_delta = True

    def begin(self, channels: list[Channel]) -> None:
        """Set all exchanges to fresh."""
        for channel in channels:
            channel.exchange.freshness = FRESH
