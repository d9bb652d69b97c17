"""Sylvie (§IV, §V): bit-widths by in-degrees and by the descent of the loss, which also decides about staleness.

The paper prints its loss descent rate as (F_t - F_{t-1}) / seconds. It raises bit-widths and waits for messages if the rate is
lower than ``window`` epochs ago: "training is about to converge or too many errors are introduced". As printed, however, the
rate of a falling loss is negative, and it grows when training is about to converge, so bit-widths would fall and messages become
stale. The default rule ("corrected") follows the text: (F_{t-1} - F_t) / seconds. Most losses fall ever more slowly, so this rule
soon has 8 bits and synchronous messages; the speeds in the paper are closer to those of the printed rate ("printed"). Both rules
use the loss of all ranks (the published code uses that of rank 0). F_0 is the first loss.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hpcgnn.base.typed import Finite, MessageBits
from hpcgnn.exchange.layout import RowBits
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, DescentSettings
from hpcgnn.world import World

CHOICES = (1, 2, 4, 8)


class DescentState(msgspec.Struct):
    """The state of :class:`LossDescent`."""

    average: Finite | None
    rates: list[float]


class SylvieState(msgspec.Struct):
    """The state of :class:`SylvieBits`."""

    base: MessageBits
    descent: DescentState


class LossDescent:
    """The descent rates of the running average of the loss, of the last ``window`` + 1 epochs."""

    def __init__(self, memory: float, window: int, rule: str = "corrected") -> None:
        self._memory, self._window, self._sign = memory, window, -1 if rule == "printed" else 1
        self.average: float | None = None
        self.rates: list[float] = []

    def add(self, seen: Observation) -> None:
        """Add the loss and the seconds of an epoch."""
        if self.average is None:
            self.average = seen.loss
            return
        before, self.average = self.average, self._memory * self.average + (1 - self._memory) * seen.loss
        self.rates = [*self.rates[-self._window :], self._sign * (before - self.average) / seen.seconds]

    @property
    def is_slower(self) -> bool | None:
        """Return whether the loss falls more slowly than ``window`` epochs ago; None until there were so many."""
        return self.rates[-1] < self.rates[0] if len(self.rates) > self._window else None

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"average": self.average, "rates": self.rates}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self.average, self.rates = state["average"], state["rates"]


def _descent(setup: Setup) -> LossDescent:
    own = setup.config.section(DescentSettings)
    return LossDescent(own.loss_memory, own.loss_window, own.descent_rule)


@BITS_POLICIES.register("sylvie")
class SylvieBits(BitsPolicy):
    """Base bits that double if the loss falls more slowly than before, and halve otherwise (Eq. 5).

    A node gets a bit-width between the base bits and 8 by its importance, which is the rank of its in-degree among the distinct
    in-degrees of all boundary nodes; in a graph with few hubs most nodes get few bits (§IV-A). The classes are computed once from
    the plan, before the first epoch. Both ends of an exchange know them, so no bit-widths need to be sent.
    """

    needs_clock = True
    state_type = SylvieState
    alternates = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.base, self._descent = CHOICES[0], _descent(setup)
        self._classes = row_classes(setup.world, setup.all_facts)

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges."""
        for facts, by_base in zip(self.all_facts, self._classes, strict=True):
            facts.exchange.row_bits = by_base[self.base]
        return {"base_bits": self.base}

    def observe(self, seen: Observation) -> None:
        """Double or halve the base bits (Eq. 5)."""
        self._descent.add(seen)
        slower = self._descent.is_slower
        if slower is not None:
            self.base = min(self.base * 2, CHOICES[-1]) if slower else max(self.base // 2, CHOICES[0])

    def state(self) -> dict[str, Any]:
        """The base bits and the descent of the loss."""
        return {"base": self.base, "descent": self._descent.state()}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from :meth:`state`."""
        self.base = state["base"]
        self._descent.load(state["descent"])


@STALENESS_POLICIES.register("sylvie")
class SylvieStaleness(StalenessPolicy):
    """Rows of the previous epoch, but fresh rows after an epoch in which the loss fell more slowly than before (§V-B)."""

    needs_clock = True
    state_type = DescentState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._descent = _descent(setup)

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set all exchanges of an epoch to the same freshness."""
        for facts in all_facts:
            facts.exchange.freshness = FRESH if self._descent.is_slower else STALE

    def observe(self, seen: Observation) -> None:
        """Add the loss and the seconds of the epoch."""
        self._descent.add(seen)

    def state(self) -> dict[str, Any]:
        """The descent of the loss."""
        return self._descent.state()

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._descent.load(state)


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
