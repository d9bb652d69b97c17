"""Policies without a state: one bit-width, random ones, and rows that are always fresh or always stale."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.kernels import keyed
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Setup, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, FIXED, OFF, STALENESS_POLICIES, PeriodSettings

_DRAW = int.from_bytes(b"bits", "big")  # takes the place of the layer in a message's key


@BITS_POLICIES.register(FIXED)
class FixedBits(BitsPolicy):
    """The bit-width of MessageConfig for all rows."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Decide nothing."""
        return {}


@BITS_POLICIES.register("uniform")
class UniformBits(BitsPolicy):
    """Bit-widths that are drawn from {2, 4, 8} for each row, every ``bits_period`` epochs: the baseline of AdaQP (its Table 6).

    A draw is a function of (seed, epoch, layer, direction, sender, send row).
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._period = setup.config.section(PeriodSettings).bits_period
        self._drawn: int | None = None

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Draw bit-widths if a period has ended. Collective."""
        drawing = epoch - epoch % self._period
        if drawing != self._drawn:
            self._drawn = drawing
            for facts in self.all_facts:
                facts.exchange.assign_bits(self._draws(facts, drawing))
        return {}

    @staticmethod
    def _draws(facts: ExchangeFacts, epoch: int) -> np.ndarray:
        exchange = facts.exchange
        where = (exchange.layer, int(exchange.is_backward), exchange.messages.world.rank)
        key = keyed.derive_key(exchange.messages.current_pass.seed, epoch, _DRAW, *where)
        rows = np.arange(int(exchange.send_counts.sum()))
        draws = keyed.draws(keyed.row_hashes(key, rows), np.zeros(1, np.uint32)).astype(np.uint64)
        return np.array(CHOICES, np.uint8)[(draws * len(CHOICES)) >> np.uint64(32)]


@STALENESS_POLICIES.register(OFF)
class Synchronous(StalenessPolicy):
    """Every exchange waits for the rows of its own epoch."""

    reuses_rows = False
    allows_delta = True

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set all exchanges to fresh."""
        for facts in all_facts:
            facts.exchange.freshness = FRESH


@STALENESS_POLICIES.register("pipeline")
class Pipeline(StalenessPolicy):
    """PipeGCN's schedule: every exchange uses the rows of the previous epoch; the first one waits for its own."""

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set all exchanges to stale."""
        for facts in all_facts:
            facts.exchange.freshness = STALE
