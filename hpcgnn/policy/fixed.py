"""No policy of bits: one number for all rows."""

from __future__ import annotations

from typing import Any

from hpcgnn.policy.base import BitsPolicy
from hpcgnn.policy.config import BITS_POLICIES, FIXED


@BITS_POLICIES.register(FIXED)
class FixedBits(BitsPolicy):
    """As MessageConfig has them."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Nothing to decide."""
        return {}
