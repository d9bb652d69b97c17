"""PipeQS (§3.4, §3.5): exchanges with little change send nothing, and bit-widths follow the change of rows.

The distance d is 1 minus the cosine between the rows of the last two messages, over the rows of all ranks (the published code
uses those of rank 0). B_CHECK: if d <= E, the received rows may be used again and bit-widths stay. If d > E, they may not be
used again, and bit-widths are raised if p > 1/2, else lowered. Exchanges that use rows again are chosen by ``bypass``: by the
text of B_CHECK ("drift") or of S_CHECK ("late"), for which ranks agree in the reduction of gradients, because a message of its
own would queue behind the messages in question.

Eq. 7 as printed, p = 1 / (1 + exp(-K d / q)), can only raise bit-widths. The default rule measures d from the threshold instead,
p = 1 / (1 + exp(-K (d / q - E))); q is the number of epochs that messages took since rows last changed little
(docs/explanation/adaptive-bits.md). K does not change whether p is above 1/2, so it is not a setting.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hpcgnn.base.typed import Count, MessageBits
from hpcgnn.exchange.mailbox import REUSED, SKIPPED, STALE
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, BypassSettings, DriftBitsSettings, DriftSettings


def raises_bits(drift: float, count: int, threshold: float, rule: str) -> bool:
    """Return whether p > 1/2, for a ``drift`` d > E and a ``count`` q."""
    return drift > 0 if rule == "printed" else drift / count > threshold


class BitsState(msgspec.Struct):
    """The state of :class:`PipeQSBits`, by exchange. counts: q."""

    bits: dict[str, MessageBits]
    counts: dict[str, Count] = msgspec.field(default_factory=dict)


class SkipState(msgspec.Struct):
    """The state of :class:`PipeQSStaleness`, by exchange. late: exchanges that were late in the previous epoch."""

    may_skip: dict[str, bool]
    late: list[str] = msgspec.field(default_factory=list)


@BITS_POLICIES.register("pipeqs")
class PipeQSBits(BitsPolicy):
    """B_CHECK's part about bit-widths, for each exchange."""

    compares_rows = True
    allows_delta = False  # rows are compared, and delta coding sends differences
    state_type = BitsState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._rule = setup.config.section(DriftBitsSettings).drift_rule
        self.bits: dict[str, int] = dict.fromkeys((facts.name for facts in setup.all_facts), CHOICES[-1])
        self.counts: dict[str, int] = {}

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges."""
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(self.bits[facts.name])
        return {}

    def observe(self, seen: Observation) -> None:
        """Raise or lower the bit-widths of exchanges with d > E."""
        for name, change in seen.changes.items():
            drift, epochs = change.distance, change.epochs
            if drift <= self._threshold:
                self.counts[name] = 0
                continue
            self.counts[name] = self.counts.get(name, 0) + epochs
            step = 1 if raises_bits(drift, self.counts[name], self._threshold, self._rule) else -1
            place = CHOICES.index(self.bits[name]) + step
            self.bits[name] = CHOICES[min(max(place, 0), len(CHOICES) - 1)]

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """As :meth:`Policy.load`; exchanges that the state does not have keep their bit-widths."""
        super().load(state | {"bits": self.bits | state["bits"]})


@STALENESS_POLICIES.register("pipeqs")
class PipeQSStaleness(StalenessPolicy):
    """S_CHECK, and B_CHECK's part about staleness, for each exchange."""

    compares_rows = True
    state_type = SkipState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        own = setup.config.section(BypassSettings)
        self._most, self._bypass = own.most_stale_epochs, own.bypass
        self.uses_late = self._bypass == "late"
        self.may_skip: dict[str, bool] = {}
        self.late: list[str] = []

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Decide by S_CHECK about the exchanges of the next pass. Not collective."""
        for facts in all_facts:
            facts.exchange.freshness = self._bypassed(facts) if self.may_skip.get(facts.name, False) else STALE

    def _bypassed(self, facts: ExchangeFacts) -> str:
        """The freshness of an exchange that may send nothing, unless its rows would become too old."""
        if self._bypass == "drift":  # the rows of this epoch may be needed until they have the maximum age
            return REUSED if facts.exchange.has_rows_from_last(self._most - 1, in_flight=True) else STALE
        return SKIPPED if facts.name in self.late and facts.exchange.has_rows_from_last(self._most) else STALE

    def observe(self, seen: Observation) -> None:
        """Decide by B_CHECK which exchanges may use their rows again."""
        self.late = seen.late
        for name, change in seen.changes.items():
            self.may_skip[name] = change.distance <= self._threshold
