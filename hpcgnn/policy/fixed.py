"""The bit-width of MessageConfig for all rows, without a policy."""

from __future__ import annotations

from typing import Any

from hpcgnn.policy.base import BitsPolicy
from hpcgnn.policy.config import BITS_POLICIES, FIXED


@BITS_POLICIES.register(FIXED)
class FixedBits(BitsPolicy):
    """One bit-width for all rows, as MessageConfig has it."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Decide nothing."""
        return {}
