"""PipeGCN's schedule."""

from __future__ import annotations

from hpcgnn.comm.mailbox import STALE
from hpcgnn.policy.base import StalenessPolicy
from hpcgnn.policy.channel import Channel
from hpcgnn.policy.config import STALENESS_POLICIES


@STALENESS_POLICIES.register("pipeline")
class Pipeline(StalenessPolicy):
    """Every exchange is waited for in the next epoch; the first one, with nothing before it, at once."""

    def begin(self, channels: list[Channel]) -> None:
        """All stale."""
        for channel in channels:
            channel.exchange.freshness = STALE
