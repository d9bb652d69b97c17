"""Sylvie (§IV, §V): bit-widths by the importance of rows and by the descent of the loss, which also decides about staleness.

Three rules of the paper are replaced by default, and each is kept as an option (docs/explanation/adaptive-bits.md):

- rows are ordered by the error that their rounding causes (:mod:`hpcgnn.policy.row_errors`), which in-degrees do not follow;
- bits are raised where the loss stalls, and rows are fresh unless it clearly falls, both beyond its noise and by epochs, not by
  seconds (:mod:`hpcgnn.policy.loss_trend`). The paper prints its rate as (F_t - F_{t-1}) / seconds, with which bits would fall
  and messages become stale when training is about to converge, against its own text;
- bits do not fall below 2 on average.

The loss is that of all ranks (the published code uses that of rank 0). F_0 is the first loss.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hpcgnn.base import typed
from hpcgnn.base.typed import QUANTIZED_BITS, Count, MessageBits
from hpcgnn.exchange.layout import RowBits
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.policy.base import ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, DescentSettings, ImportanceSettings
from hpcgnn.policy.loss_trend import LossTrend
from hpcgnn.policy.row_errors import OrderedBits
from hpcgnn.world import World

CHOICES = QUANTIZED_BITS


class SylvieState(msgspec.Struct):
    """The state of :class:`SylvieBits`. due: the epoch in which rows are ordered anew."""

    base: MessageBits
    trend: LossTrend = msgspec.field(default_factory=LossTrend)
    due: Count | None = None


@BITS_POLICIES.register("sylvie")
class SylvieBits(OrderedBits):
    """Base bits that double if the descent of the loss stalls, and halve otherwise (Eq. 5).

    By ``--importance error``, base bits are the mean of all rows of an exchange. By ``degree``, they are the least: a node gets a
    bit-width between them and 8 by its importance, which is the rank of its in-degree among the distinct in-degrees of all
    boundary nodes; in a graph with few hubs most nodes get few bits (§IV-A). These classes are computed once from the plan, and
    both ends of an exchange know them.
    """

    state_type = SylvieState

    def __init__(self, setup: Setup) -> None:
        self._own, self._rows = setup.config.section(DescentSettings), setup.config.section(ImportanceSettings)
        super().__init__(setup, by_error=self._rows.importance == "error")
        self.base, self.trend = self._rows.least_bits, LossTrend()
        self._classes = [] if self._errors is not None else row_classes(setup.world, setup.all_facts)

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges. Collective."""
        if self._errors is None:
            for facts, by_base in zip(self.all_facts, self._classes, strict=True):
                facts.exchange.row_bits = by_base[self.base]
        else:
            self._set_bits(epoch, self.base)
        return {"base_bits": self.base, **self.trend.record(self._own)}

    def observe(self, seen: Observation) -> None:
        """Double or halve the base bits (Eq. 5). Rounding adds to the loss, so lines are of losses with the same bits."""
        super().observe(seen)
        self.trend.add(seen.loss, self._own)
        slower, before = self.trend.is_slower(self._own), self.base
        if slower is not None:
            self.base = min(before * 2, CHOICES[-1]) if slower else max(before // 2, self._rows.least_bits)
        if self.base != before:
            self.trend.losses = []

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """As :meth:`OrderedBits.load`; without ranges, those of the next epoch give the order."""
        super().load(state, rank_state)
        self.base = max(self.base, self._rows.least_bits)


@STALENESS_POLICIES.register("sylvie")
class SylvieStaleness(StalenessPolicy):
    """Rows of the previous epoch while the loss clearly falls, and else fresh rows (§V-B)."""

    state_type = LossTrend

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._trend, self._own = LossTrend(), setup.config.section(DescentSettings)

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set all exchanges of an epoch to the same freshness."""
        for facts in all_facts:
            facts.exchange.freshness = FRESH if self._trend.needs_fresh_rows(self._own) else STALE

    def observe(self, seen: Observation) -> None:
        """Add the loss of the epoch."""
        self._trend.add(seen.loss, self._own)

    def state(self) -> dict[str, Any]:
        """The descent of the loss."""
        return msgspec.to_builtins(self._trend)

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from :meth:`state`."""
        self._trend = typed.validated(state, LossTrend, "the state of a policy")


def row_classes(world: World, all_facts: list[ExchangeFacts]) -> list[dict[int, RowBits]]:
    """For each exchange, the bit-widths of its rows for each number of base bits. Collective.

    Exchanges with the same rows share one object: the layers of most models have one plan. Link prediction also has a halo, and
    partial attention has two plans.
    """
    found: list[dict[int, RowBits]] = []
    made: list[tuple[tuple[np.ndarray, np.ndarray], dict[int, RowBits]]] = []
    for facts in all_facts:
        mine = facts.degrees()
        unlike = [not all(map(np.array_equal, mine, theirs)) for theirs, _ in made]
        alike = np.flatnonzero(world.allreduce(np.array([*unlike, False], np.int64), "max")[:-1] == 0)
        if not alike.size:
            distinct = distinct_degrees(world, mine[0])
            places = [importance(degrees, distinct) for degrees in mine]
            made.append((mine, {base: RowBits(*(class_bits(each, base) for each in places)) for base in CHOICES}))
        found.append(made[alike[0] if alike.size else -1][1])
    return found


def distinct_degrees(world: World, degrees: np.ndarray) -> np.ndarray:
    """(k,) ascending distinct degrees of the rows of all ranks. Collective.

    Memory is P times the largest number of distinct degrees of a rank, which is below the square root of twice its edges.
    """
    mine = np.unique(degrees)
    most = int(world.allreduce(np.array([mine.size]), "max")[0])
    everyones = world.allgather(np.pad(mine, (0, most - mine.size), constant_values=-1))
    return np.setdiff1d(everyones, [-1])


def importance(degrees: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """(n,) float64 importance, from 0 for the smallest of the ``distinct`` degrees to 1 for the largest (§IV-A)."""
    return np.searchsorted(distinct, degrees) / (distinct.size - 1) if distinct.size > 1 else np.ones(degrees.size)


def class_bits(important: np.ndarray, base: int) -> np.ndarray:
    """(n,) uint8 bit-widths from ``base`` to 8, each for an equal range of importance (Figure 7)."""
    choices = np.array([bits for bits in CHOICES if bits >= base], np.uint8)
    return choices[np.minimum((important * choices.size).astype(np.int64), choices.size - 1)]
