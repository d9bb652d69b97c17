"""Policies without a state: one bit-width, random ones, and rows that are always fresh or always stale."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import Exchange
from hpcgnn.exchange.layout import make_layout
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.kernels import keyed
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Setup, StalenessPolicy
from hpcgnn.policy.config import (
    BITS_POLICIES,
    FIXED,
    OFF,
    STALENESS_POLICIES,
    UNIFORM,
    BudgetSettings,
    PeriodSettings,
)

_DRAW = int.from_bytes(b"bits", "big")  # takes the place of the layer in a message's key


@BITS_POLICIES.register(FIXED)
class FixedBits(BitsPolicy):
    """The bit-width of MessageConfig for all rows."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Decide nothing."""
        return {}


class UniformState(msgspec.Struct):
    """The state of :class:`UniformBits`."""

    # bytes of an epoch's messages on all ranks, if all rows had each of CHOICES; None before two epochs have ended
    sizes: list[float] | None = None


@BITS_POLICIES.register(UNIFORM)
class UniformBits(BitsPolicy):
    """Bit-widths that are drawn from {2, 4, 8} for each row, every ``bits_period`` epochs: the baseline of AdaQP (its Table 6).

    A draw is a function of (seed, epoch, layer, direction, sender, send row). With a number of bytes, they are drawn in shares
    with which an epoch's messages have this size. The first two epochs have equal shares: in the second one, exchanges show how
    wide their rows are, and which never change and travel in the first epoch only.
    """

    state_type = UniformState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._period = setup.config.section(PeriodSettings).bits_period
        self._bytes = setup.config.section(BudgetSettings).epoch_bytes
        self._drawn: tuple[int, list[float] | None] | None = None
        self.sizes: list[float] | None = None
        self._has_begun = False
        if self._bytes is not None:
            for facts in self.all_facts:
                facts.exchange.trace_ranges()

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Draw bit-widths if a period has ended, or the size of messages has become known. Collective.

        Raises:
            HpcgnnError: on every rank, where no shares of 2, 4 and 8 bits give the number of bytes.
        """
        shares = None if self._bytes is None else self._shares(self._bytes)
        drawing = epoch - epoch % self._period, shares
        if drawing != self._drawn:
            self._drawn = drawing
            for facts in self.all_facts:
                facts.exchange.assign_bits(self._draws(facts, *drawing))
        return {}

    @staticmethod
    def _draws(facts: ExchangeFacts, epoch: int, shares: list[float] | None) -> np.ndarray:
        exchange, choices = facts.exchange, np.array(CHOICES, np.uint8)
        where = (exchange.layer, int(exchange.is_backward), exchange.messages.world.rank)
        key = keyed.derive_key(exchange.messages.current_pass.seed, epoch, _DRAW, *where)
        rows = int(exchange.send_counts.sum())
        draws = keyed.draws(keyed.row_hashes(key, np.arange(rows + 1)), np.zeros(1, np.uint32)).astype(np.uint64)
        if shares is None:
            return choices[(draws[:-1] * len(CHOICES)) >> np.uint64(32)]
        # Rows in a random order take one bit-width after another, so that each has its share of them, to less than a row.
        places = np.empty(rows)
        places[np.argsort(draws[:-1], kind="stable")] = np.arange(rows) + draws[-1] / 2**32
        return choices[np.searchsorted(np.cumsum(shares[:-1]) * rows, places, side="right")]

    def _shares(self, wanted: int) -> list[float] | None:
        """The shares of CHOICES with which messages have ``wanted`` bytes: a mixture of equal shares with all rows in 2 bits, or
        with all in 8. None before two epochs have ended. Collective.
        """
        exchanges = [facts.exchange for facts in self.all_facts]
        has_sent = any(each.ranges is not None and each.ranges.messages for each in exchanges)
        if has_sent and not self._has_begun:
            self._has_begun = True
            for exchange in exchanges:
                exchange.trace_ranges()
        elif has_sent:
            self.sizes = self.setup.world.allreduce(np.sum([_sizes(each) for each in exchanges], axis=0)).tolist()
        if self.sizes is None:
            return None
        for exchange in exchanges:
            exchange.ranges = None  # which cost time
        known = self.sizes[0], sum(self.sizes) / len(CHOICES), self.sizes[-1]
        if not known[0] <= wanted <= known[-1]:
            raise HpcgnnError(
                f"--bits {UNIFORM}:{wanted} is out of reach: rows of {CHOICES[0]} to {CHOICES[-1]} bits give {known[0]:.0f} to "
                f"{known[-1]:.0f} bytes in an epoch of this run",
                agreed=True,
            )
        ends = np.eye(len(CHOICES))
        return [
            float(np.interp(wanted, known, (low, 1 / len(CHOICES), high)))
            for low, high in zip(ends[0], ends[-1], strict=True)
        ]

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the state, which has the sizes of other messages where the parts have changed."""
        if rank_state is not None:
            super().load(state)


def _sizes(exchange: Exchange) -> np.ndarray:
    """(CHOICES,) float64 bytes that this rank sends in an epoch, if all rows had each bit-width."""
    counts, traced, sizes = exchange.send_counts, exchange.ranges, np.zeros(len(CHOICES))
    if traced is not None and traced.width is not None:
        for place, bits in enumerate(CHOICES):
            layout = make_layout(counts, np.full(int(counts.sum()), bits, np.uint8), traced.width)
            sizes[place] = traced.messages * layout.num_bytes
    return sizes


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
