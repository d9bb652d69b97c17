"""PipeQS (§3.4, §3.5): exchanges whose rows change little send nothing, and bit-widths follow the change of rows.

The distance d is that of Eq. 6 between the rows of two messages, over all ranks, as far as noise does not explain it
(:mod:`hpcgnn.exchange.changes`). Rows are used again only where no larger d may be hidden by noise. An exchange that sends
nothing is not looked at, so its next distance is expected by the last one: rows that move on evenly are ``d (k / n)^2`` apart
after k epochs if they were d apart after n. B_CHECK: received rows are used again while that is at most E. Exchanges that use
rows again are chosen by ``bypass``: all of these ("age"), those with d <= E at any age, as B_CHECK is printed ("drift"), or
only the latter whose last message was late (S_CHECK, "late"). Ranks agree in the reduction of gradients, because a message of
its own would queue behind the messages in question.

Bit-widths by the rule "error": rounding errors are independent from message to message, so they average out over messages whose
rows are alike. The best average of rows that move by C from message to message, with rounding errors R(b), is off by
sqrt(C R(b)), the steady state of a Kalman filter. The fewest bits are chosen for which that is at most 2 E, the squared change
at a distance of E.

By the other rules, bit-widths are raised if p > 1/2 and lowered otherwise where d > E. Eq. 7 as printed,
p = 1 / (1 + exp(-d / q)), can only raise them; "corrected" measures d from the threshold, p = 1 / (1 + exp(E - d / q)). q is the
number of epochs that messages took since rows last changed little (docs/explanation/adaptive-bits.md). K does not change whether
p is above 1/2, so it is not a setting.

SANCUS skips broadcasts while rows are close to those of the last one, without a pipeline.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

from hpcgnn.base.typed import Count, MessageBits
from hpcgnn.exchange.changes import RowChange
from hpcgnn.exchange.mailbox import FRESH, REUSED, SKIPPED, STALE
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import (
    BITS_POLICIES,
    STALENESS_POLICIES,
    AgeSettings,
    BypassSettings,
    DriftBitsSettings,
    DriftSettings,
)

# Bits are lowered where the error with fewer ones is at most this share of the bound, so that they do not flip.
_LOWERED = 0.5


def chance(drift: float, count: int, threshold: float, rule: str) -> float:
    """p of Eq. 7 for a distance d and a ``count`` q, by the rule "printed" or "corrected"."""
    return 1 / (1 + math.exp((0 if rule == "printed" else threshold) - drift / count))


def averaged_error(change: RowChange, bits: int) -> float:
    """The squared error, relative to the rows, that is left if the rounding errors of messages are averaged."""
    return math.sqrt(change.squared_change * change.rounding_error(bits))


def enough_bits(change: RowChange, bits: int, most: float) -> int:
    """The bit-width after ``bits``: the fewest ones with an averaged error of at most ``most``, at most one step lower."""
    place = CHOICES.index(bits)
    for more in range(place, len(CHOICES) - 1):
        if averaged_error(change, CHOICES[more]) <= most:
            break
        place = more + 1
    if bits == CHOICES[place] and place and averaged_error(change, CHOICES[place - 1]) <= _LOWERED * most:
        place -= 1
    return CHOICES[place]


def oldest_age(change: RowChange, threshold: float, most: int) -> int:
    """The number of epochs, of 1 to ``most``, after which rows are expected to be ``threshold`` apart."""
    if change.most * most**2 <= threshold * change.epochs**2:
        return most
    return max(1, int(change.epochs * math.sqrt(threshold / change.most)))


class BitsState(msgspec.Struct):
    """The state of :class:`PipeQSBits`, by exchange. counts: q."""

    bits: dict[str, MessageBits]
    counts: dict[str, Count] = msgspec.field(default_factory=dict)


class SkipState(msgspec.Struct):
    """The state of :class:`PipeQSStaleness`, by exchange. oldest: the largest age of rows in use. late: exchanges that were late
    in the previous epoch."""

    oldest: dict[str, Count] = msgspec.field(default_factory=dict)
    late: list[str] = msgspec.field(default_factory=list)


@BITS_POLICIES.register("pipeqs")
class PipeQSBits(BitsPolicy):
    """B_CHECK's part about bit-widths, for each exchange."""

    compares_every = 1
    allows_delta = False  # rows are compared, and delta coding sends differences
    state_type = BitsState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._rule = setup.config.section(DriftBitsSettings).drift_rule
        self.bits: dict[str, int] = dict.fromkeys((facts.name for facts in setup.all_facts), CHOICES[-1])
        self.counts: dict[str, int] = {}
        self._details: dict[str, Any] = {}

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges."""
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(self.bits[facts.name])
        return {}

    def observe(self, seen: Observation) -> None:
        """Choose the bit-widths of exchanges that sent rows."""
        self._details = {name: self._decided(name, change) for name, change in seen.changes.items()}

    def details(self) -> dict[str, dict[str, Any]]:
        """The numbers by which bit-widths were chosen."""
        return self._details

    def _decided(self, name: str, change: RowChange) -> dict[str, float]:
        if self._rule == "error":
            self.bits[name] = enough_bits(change, self.bits[name], 2 * self._threshold)
            return {"distance": change.distance, "averaged_error": averaged_error(change, self.bits[name])}
        if change.distance <= self._threshold:
            self.counts[name] = 0
            return {"distance": change.distance, "q": 0}
        self.counts[name] = self.counts.get(name, 0) + change.epochs
        p = chance(change.distance, self.counts[name], self._threshold, self._rule)
        place = CHOICES.index(self.bits[name]) + (1 if p > 0.5 else -1)
        self.bits[name] = CHOICES[min(max(place, 0), len(CHOICES) - 1)]
        return {"distance": change.distance, "q": self.counts[name], "p": p}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """As :meth:`Policy.load`; exchanges that the state does not have keep their bit-widths."""
        super().load(state | {"bits": self.bits | state["bits"]})


@STALENESS_POLICIES.register("pipeqs")
class PipeQSStaleness(StalenessPolicy):
    """S_CHECK, and B_CHECK's part about staleness, for each exchange."""

    compares_every = 1
    state_type = SkipState
    sends: ClassVar[str] = STALE  # the freshness of exchanges that send rows

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._most = setup.config.section(AgeSettings).most_stale_epochs
        self._bypass = setup.config.section(BypassSettings).bypass
        self.uses_late = self._bypass == "late"
        self.oldest: dict[str, int] = {}
        self.late: list[str] = []
        self._distances: dict[str, float] = {}

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Decide by S_CHECK about the exchanges of the next pass. Not collective."""
        for facts in all_facts:
            oldest = self.oldest.get(facts.name, 1)
            facts.exchange.freshness = self._bypassed(facts, oldest) if oldest > 1 else self.sends

    def _bypassed(self, facts: ExchangeFacts, oldest: int) -> str:
        """The freshness of an exchange that may send nothing until its rows have the age ``oldest``."""
        if self._bypass == "late":
            return SKIPPED if facts.name in self.late and facts.exchange.has_rows_from_last(oldest) else self.sends
        # where rows are stale, those of this epoch are still in use in the one in which others are sent
        age = oldest - (self.sends == STALE)
        return REUSED if facts.exchange.has_rows_from_last(age, in_flight=True) else self.sends

    def observe(self, seen: Observation) -> None:
        """Decide by B_CHECK how long exchanges may use their rows."""
        self.late = seen.late
        self._distances = {name: change.distance for name, change in seen.changes.items()}
        for name, change in seen.changes.items():
            if self._bypass == "age":
                self.oldest[name] = oldest_age(change, self._threshold, self._most)
            else:
                self.oldest[name] = self._most if change.most <= self._threshold else 1

    def details(self) -> dict[str, dict[str, Any]]:
        """The distances and the largest ages of rows."""
        return {name: {"distance": far, "oldest_rows": self.oldest[name]} for name, far in self._distances.items()}


@STALENESS_POLICIES.register("sancus")
class Sancus(PipeQSStaleness):
    """SANCUS' skipped broadcasts: every exchange uses its rows again while they are expected to be close to those of the last
    message, and else waits for the rows of its own epoch. Its own code compares the rows of an epoch before each broadcast, for
    which they must be computed and ranks must agree; here, the last known change tells how far they are.
    """

    sends = FRESH
