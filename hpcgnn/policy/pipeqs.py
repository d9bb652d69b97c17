"""PipeQS (§3.4, §3.5): exchanges are skipped while their rows change little, and bits follow how much they change.

d is 1 less the cosine of the rows received last and those before, over the rows of all ranks (the published code looks at
rank 0's). B_CHECK: where d <= E the exchange may be skipped, and its bits stay. Where d > E it may not, and its bits are raised
if p > 1/2, else lowered. S_CHECK: an exchange whose last message has not come everywhere is skipped if it may be; else it is
waited for. All ranks decide alike, and rows are never used when they are more than ``most_stale_epochs`` old.

Eq. 7, p = 1 / (1 + exp(-K d / q)), is above 1/2 for any d > 0, so that, as printed, bits only ever grow ("printed"). Its text
wants them to fall "thereby speeding up communication to avoid staleness". The default ("corrected") measures from the
threshold that decides about everything else: p = 1 / (1 + exp(-K (d / q - E))), where q, the paper's counter of staleness, is
the number of epochs between the two messages. d / q is the drift in one epoch. Above E the rows themselves change fast, and
precision is raised; below it they look different only because messages take too many epochs, and fewer bits make those
arrive sooner. K scales p, but not whether it is above 1/2, so there is no setting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm.mailbox import SKIPPED, STALE
from hpcgnn.policy.base import BitsPolicy, Setup, StalenessPolicy
from hpcgnn.policy.channel import Channel, Observation
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, SmoothingSettings
from hpcgnn.policy.problem import CHOICES
from hpcgnn.settings import setting

DRIFT_RULES = ("corrected", "printed")


@dataclass(frozen=True)
class DriftSettings:
    """Of both parts of B_CHECK (§3.5)."""

    drift_threshold: float = setting(
        0.1, "E: rows whose cosine distance from those before is larger are sent anew, in other bits.", least=0
    )


@dataclass(frozen=True)
class DriftBitsSettings:
    """Of the part about bits."""

    drift_rule: str = setting(
        "corrected", "Eq. 7 as printed only ever raises bits; corrected also lowers them.", choices=DRIFT_RULES
    )


@dataclass(frozen=True)
class AgeSettings:
    """Of the part about staleness."""

    most_stale_epochs: int = setting(4, "rows are never used later than so many epochs after they were sent.", least=1)


def raises_bits(drift: float, epochs: int, threshold: float, rule: str) -> bool:
    """Whether p > 1/2, for a ``drift`` d > E over ``epochs`` q."""
    return drift > 0 if rule == "printed" else drift / epochs > threshold


@BITS_POLICIES.register("pipeqs")
class PipeQSBits(BitsPolicy):
    """B_CHECK's part about bits, of each exchange."""

    summary = "goes by how much rows change"
    settings = (DriftSettings, DriftBitsSettings)
    compares_rows = True
    goes_with_delta = False  # what is compared are rows, which a difference is not
    bits_come_back = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._rule = setup.config.section(DriftBitsSettings).drift_rule
        self.bits = dict.fromkeys((channel.name for channel in setup.channels), CHOICES[-1])

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set all exchanges' bits."""
        for channel in self.channels:
            channel.exchange.bits = channel.exchange.uniform_bits(self.bits[channel.name])
        return {}

    def observe(self, seen: Observation) -> None:
        """A step up or down."""
        for name, (drift, epochs) in seen.drift.items():
            if drift > self._threshold:
                step = 1 if raises_bits(drift, epochs, self._threshold, self._rule) else -1
                place = CHOICES.index(self.bits[name]) + step
                self.bits[name] = CHOICES[min(max(place, 0), len(CHOICES) - 1)]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"bits": self.bits}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Go on from :meth:`state`."""
        self.bits |= state["bits"]


@STALENESS_POLICIES.register("pipeqs")
class PipeQSStaleness(StalenessPolicy):
    """S_CHECK, and B_CHECK's part about staleness, of each exchange."""

    summary = "also older ones, while they change little"
    settings = (DriftSettings, AgeSettings, SmoothingSettings)
    compares_rows = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threshold = setup.config.section(DriftSettings).drift_threshold
        self._most = setup.config.section(AgeSettings).most_stale_epochs
        self.may_skip: dict[str, bool] = {}

    def begin(self, channels: list[Channel]) -> None:
        """S_CHECK of exchanges that are about to be used. Collective."""
        if not channels:
            return
        direction = "gradients" if channels[0].exchange.is_backward else "features"
        late = self.setup.clock.observe(f"late_{direction}", lambda: self._late(channels))
        for channel in channels:
            is_late = channel.name in late
            channel.exchange.freshness = SKIPPED if is_late and self._may_be_skipped(channel) else STALE

    def _late(self, channels: list[Channel]) -> list[str]:
        """Exchanges whose last message has not come on some rank. Collective."""
        mine = np.array([channel.exchange.is_late() for channel in channels], np.int64)
        anywhere = self.setup.world.allreduce(mine, "max", "which messages have come")
        return [channel.name for channel, is_late in zip(channels, anywhere, strict=True) if is_late]

    def _may_be_skipped(self, channel: Channel) -> bool:
        return self.may_skip.get(channel.name, False) and channel.exchange.holds_rows_of(self._most)

    def observe(self, seen: Observation) -> None:
        """B_CHECK."""
        for name, (drift, _) in seen.drift.items():
            self.may_skip[name] = drift <= self._threshold

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"may_skip": self.may_skip}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.may_skip = state["may_skip"]
