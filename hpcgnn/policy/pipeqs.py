"""PipeQS (§3.4, §3.5): exchanges are left out while their rows change little, and bits follow how much they change.

d is 1 less the cosine of the rows received last and those before, over the rows of all ranks (the published code looks at
rank 0's). B_CHECK: where d <= E the rows that have come may be used again, and bits stay. Where d > E they may not, and bits are
raised if p > 1/2, else lowered. All ranks decide alike, and rows are never used when they are more than ``most_stale_epochs``
old.

What "may" leads to is ``bypass``. "drift" is B_CHECK's text, "the previous features/gradients can be reused [...], effectively
bypassing communication": nothing is sent until rows are as old as they may be. "late" is S_CHECK's: only an exchange whose
last message had not come everywhere when the epoch before ended. That rides in the epoch's reduction of gradients, as a
question of its own would wait on the links behind the messages that it asks about.

Eq. 7, p = 1 / (1 + exp(-K d / q)), is above 1/2 for any d > 0, so that, as printed, bits only ever grow ("printed"). Its text
wants them to fall "thereby speeding up communication to avoid staleness". The default ("corrected") measures from the
threshold that decides about everything else: p = 1 / (1 + exp(-K (d / q - E))), where q is the paper's "counter tracking the
continuous quantization updates and the staleness count": the epochs that messages took since rows last changed little. Rows
that begin to change get more bits. Rows that go on changing get fewer: whatever their bits, an epoch later they are wrong by d,
and below it the bits of a message do not matter. K scales p, but not whether it is above 1/2, so there is no setting for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hpcgnn.comm.mailbox import REUSED, SKIPPED, STALE
from hpcgnn.policy.base import BitsPolicy, Setup, StalenessPolicy
from hpcgnn.policy.channel import Channel, Observation
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES
from hpcgnn.policy.problem import CHOICES
from hpcgnn.policy.settings import AgeSettings, BypassSettings, DriftBitsSettings, DriftSettings
from hpcgnn.typed import Count, MessageBits


def raises_bits(drift: float, count: int, threshold: float, rule: str) -> bool:
    """Return whether p > 1/2, for a ``drift`` d > E and a ``count`` q."""
    return drift > 0 if rule == "printed" else drift / count > threshold


class BitsState(msgspec.Struct):
    """Of :class:`PipeQSBits`: by exchange. counts: q."""

    bits: dict[str, MessageBits]
    counts: dict[str, Count] = msgspec.field(default_factory=dict)


class SkipState(msgspec.Struct):
    """Of :class:`PipeQSStaleness`: by exchange. late: of the epoch before."""

    may_skip: dict[str, bool]
    late: list[str] = msgspec.field(default_factory=list)


@BITS_POLICIES.register("pipeqs")
class PipeQSBits(BitsPolicy):
    """B_CHECK's part about bits, of each exchange."""

    compares_rows = True
    goes_with_delta = False  # what is compared are rows, which a difference is not
    bits_come_back = True
    remembers = BitsState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._rule = setup.config.section(DriftBitsSettings).drift_rule
        self.bits = dict.fromkeys((channel.name for channel in setup.channels), CHOICES[-1])
        self.counts: dict[str, int] = {}

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set all exchanges' bits."""
        for channel in self.channels:
            channel.exchange.bits = channel.exchange.uniform_bits(self.bits[channel.name])
        return {}

    def observe(self, seen: Observation) -> None:
        """A step up or down."""
        for name, (drift, epochs) in seen.drift.items():
            if drift <= self._threshold:
                self.counts[name] = 0
                continue
            self.counts[name] = self.counts.get(name, 0) + epochs
            step = 1 if raises_bits(drift, self.counts[name], self._threshold, self._rule) else -1
            place = CHOICES.index(self.bits[name]) + step
            self.bits[name] = CHOICES[min(max(place, 0), len(CHOICES) - 1)]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"bits": self.bits, "counts": self.counts}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Go on from :meth:`state`."""
        self.bits |= state["bits"]
        self.counts = dict(state.get("counts", {}))


@STALENESS_POLICIES.register("pipeqs")
class PipeQSStaleness(StalenessPolicy):
    """S_CHECK, and B_CHECK's part about staleness, of each exchange."""

    compares_rows = True
    remembers = SkipState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._most = setup.config.section(AgeSettings).most_stale_epochs
        self._bypass = setup.config.section(BypassSettings).bypass
        self.asks_what_is_late = self._bypass == "late"
        self.may_skip: dict[str, bool] = {}
        self.late: list[str] = []

    def begin(self, channels: list[Channel]) -> None:
        """S_CHECK of exchanges that are about to be used. Not collective."""
        for channel in channels:
            channel.exchange.freshness = self._bypassed(channel) if self.may_skip.get(channel.name, False) else STALE

    def _bypassed(self, channel: Channel) -> str:
        """For an exchange that may be left out. The rows that are used are to be at most so old as they may be."""
        if self._bypass == "drift":  # those of this epoch may be needed for so long
            return REUSED if channel.exchange.holds_rows_of(self._most - 1, in_flight=True) else STALE
        return SKIPPED if channel.name in self.late and channel.exchange.holds_rows_of(self._most) else STALE

    def observe(self, seen: Observation) -> None:
        """B_CHECK."""
        self.late = seen.late
        for name, (drift, _) in seen.drift.items():
            self.may_skip[name] = drift <= self._threshold

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"may_skip": self.may_skip, "late": self.late}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.may_skip, self.late = state["may_skip"], list(state.get("late", []))
