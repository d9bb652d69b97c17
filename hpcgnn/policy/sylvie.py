"""Sylvie (§IV, §V): bits by the in-degree of what travels and by how fast the loss falls, and staleness by the latter too.

The paper prints its loss descent rate as (F_t - F_{t-1}) / seconds, and raises bits and waits for messages where it is less than
``window`` epochs ago: "training is about to converge or too many errors are introduced". But as printed the rate of a falling
loss is negative, and grows when training is about to converge: bits then fall, and messages become stale. The default
("corrected") is the text's: (F_{t-1} - F_t) / seconds. A loss that falls ever more slowly, as most do, then soon has 8 bits and
is synchronous; the paper's speeds are nearer to those of the rate as printed ("printed"). Both take the loss of all ranks
(the published code looks at rank 0's). F_0 is the first loss.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hpcgnn.comm import World
from hpcgnn.comm.mailbox import FRESH, STALE
from hpcgnn.comm.row_bits import RowBits
from hpcgnn.policy.base import BitsPolicy, Setup, StalenessPolicy
from hpcgnn.policy.channel import Channel, Observation
from hpcgnn.policy.config import (
    BITS_POLICIES,
    STALENESS_POLICIES,
    PolicyConfig,
)
from hpcgnn.policy.settings import DescentSettings
from hpcgnn.typed import Finite, MessageBits

CHOICES = (1, 2, 4, 8)


class DescentState(msgspec.Struct):
    """Of :class:`LossDescent`."""

    average: Finite | None
    rates: list[float]


class SylvieState(msgspec.Struct):
    """Of :class:`SylvieBits`."""

    base: MessageBits
    descent: DescentState


class LossDescent:
    """How fast the running average of the loss falls, now and ``window`` epochs ago."""

    def __init__(self, memory: float, window: int, rule: str = "corrected") -> None:
        self._memory, self._window, self._sign = memory, window, -1 if rule == "printed" else 1
        self.average: float | None = None
        self.rates: list[float] = []

    def add(self, seen: Observation) -> None:
        """Take an epoch's loss and seconds."""
        if self.average is None:
            self.average = seen.loss
            return
        before, self.average = self.average, self._memory * self.average + (1 - self._memory) * seen.loss
        self.rates = [*self.rates[-self._window :], self._sign * (before - self.average) / seen.seconds]

    @classmethod
    def of(cls, config: PolicyConfig) -> LossDescent:
        """As configured."""
        own = config.section(DescentSettings)
        return cls(own.loss_memory, own.loss_window, own.descent_rule)

    @property
    def is_slower(self) -> bool | None:
        """Return whether the loss falls more slowly than ``window`` epochs ago; None until there were so many."""
        return self.rates[-1] < self.rates[0] if len(self.rates) > self._window else None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"average": self.average, "rates": self.rates}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.average, self.rates = state["average"], state["rates"]


@BITS_POLICIES.register("sylvie")
class SylvieBits(BitsPolicy):
    """Base bits double where the loss falls more slowly than before, and halve where it does not (Eq. 5).

    Nodes are given one of the bits from the base to 8 by their importance: their in-degree's place among the distinct
    in-degrees of all boundary nodes, so that in a graph with few hubs most nodes get few bits (§IV-A). The classes are made
    once, before the first epoch, from the plan; both ends of an exchange know them, so that nothing is told afterwards.
    """

    needs_clock = True
    remembers = SylvieState
    bits_come_back = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._descent = LossDescent.of(setup.config)
        self.base = CHOICES[0]
        self._classes = row_classes(setup.world, setup.channels)

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set all exchanges' bits."""
        for channel, by_base in zip(self.channels, self._classes, strict=True):
            channel.exchange.bits = by_base[self.base]
        return {"base_bits": self.base}

    def observe(self, seen: Observation) -> None:
        """Eq. 5."""
        self._descent.add(seen)
        slower = self._descent.is_slower
        if slower is not None:
            self.base = min(self.base * 2, CHOICES[-1]) if slower else max(self.base // 2, CHOICES[0])

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"base": self.base, "descent": self._descent.state()}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Go on from :meth:`state`."""
        self.base = state["base"]
        self._descent.load(state["descent"])


@STALENESS_POLICIES.register("sylvie")
class SylvieStaleness(StalenessPolicy):
    """Stale by one epoch, but synchronous after an epoch in which the loss fell more slowly than before (§V-B)."""

    needs_clock = True
    remembers = DescentState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._descent = LossDescent.of(setup.config)

    def begin(self, channels: list[Channel]) -> None:
        """The same for all exchanges of an epoch."""
        for channel in channels:
            channel.exchange.freshness = FRESH if self._descent.is_slower else STALE

    def observe(self, seen: Observation) -> None:
        """Take note of the loss."""
        self._descent.add(seen)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self._descent.state()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self._descent.load(state)


def row_classes(world: World, channels: list[Channel]) -> list[dict[int, RowBits]]:
    """For each exchange, the bits of its rows by base bits. Exchanges whose rows are alike share them. Collective.

    The layers of most models have one plan. With the task of links there is a halo beside it, and partial attention has two.
    """
    found: list[dict[int, RowBits]] = []
    made: list[tuple[tuple[np.ndarray, np.ndarray], dict[int, RowBits]]] = []
    for channel in channels:
        mine = channel.degrees()
        unlike = [any(map(_differ, mine, theirs)) for theirs, _ in made]
        alike = np.flatnonzero(world.allreduce(np.array([*unlike, False], np.int64), "max")[:-1] == 0)
        if alike.size:
            found.append(made[alike[0]][1])
            continue
        distinct = distinct_degrees(world, mine[0])
        bits = {
            base: RowBits(*(class_bits(importance(degrees, distinct), base) for degrees in mine)) for base in CHOICES
        }
        made.append((mine, bits))
        found.append(bits)
    return found


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    return not np.array_equal(one, other)


def distinct_degrees(world: World, degrees: np.ndarray) -> np.ndarray:
    """(k,) ascending, of all ranks' rows. Collective.

    A rank holds P times the most distinct ones of a rank: of those there are fewer than the square root of twice the edges.
    """
    mine = np.unique(degrees)
    most = int(world.allreduce(np.array([mine.size]), "max")[0])
    everyones = world.allgather(np.pad(mine, (0, most - mine.size), constant_values=-1))
    return np.setdiff1d(everyones, [-1])


def importance(degrees: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """(n,) float64 from 0, for the smallest of the ``distinct`` degrees, to 1 for the largest (§IV-A)."""
    return np.searchsorted(distinct, degrees) / (distinct.size - 1) if distinct.size > 1 else np.ones(degrees.size)


def class_bits(important: np.ndarray, base: int) -> np.ndarray:
    """(n,) uint8: the bits from ``base`` on, each for an equal share of importance (Figure 7)."""
    choices = np.array([bits for bits in CHOICES if bits >= base], np.uint8)
    return choices[np.minimum((important * choices.size).astype(np.int64), choices.size - 1)]
