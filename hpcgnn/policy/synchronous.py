"""No policy of staleness."""

from __future__ import annotations

from hpcgnn.comm.mailbox import FRESH
from hpcgnn.policy.base import StalenessPolicy
from hpcgnn.policy.channel import Channel
from hpcgnn.policy.config import OFF, STALENESS_POLICIES


@STALENESS_POLICIES.register(OFF)
class Synchronous(StalenessPolicy):
    """Every exchange is waited for in its epoch."""

    reuses_rows = False
    goes_with_delta = True

    def begin(self, channels: list[Channel]) -> None:
        """All fresh."""
        for channel in channels:
            channel.exchange.freshness = FRESH
