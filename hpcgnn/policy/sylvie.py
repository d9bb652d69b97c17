"""Sylvie (§IV, §V): bit-widths by in-degrees and by the descent of the loss, which also decides about staleness.

The paper prints its loss descent rate as (F_t - F_{t-1}) / seconds, with which bit-widths would fall and messages become stale
when training is about to converge, against its own text. The default rule ("corrected") follows the text: (F_{t-1} - F_t) /
seconds; the speeds in the paper are closer to those of the printed rate ("printed"). Both rules use the loss of all ranks (the
published code uses that of rank 0). F_0 is the first loss.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hpcgnn.base import typed
from hpcgnn.base.typed import Finite, MessageBits
from hpcgnn.exchange.layout import RowBits
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES, DescentSettings
from hpcgnn.world import World

CHOICES = (1, 2, 4, 8)


class LossDescent(msgspec.Struct):
    """The running average of the loss, and its descent rates in the last ``loss_window`` + 1 epochs; also their state in a
    checkpoint.
    """

    average: Finite | None
    rates: list[float]

    def add(self, seen: Observation, own: DescentSettings) -> None:
        """Add the loss and the seconds of an epoch."""
        if self.average is None:
            self.average = seen.loss
            return
        before, sign = self.average, -1 if own.descent_rule == "printed" else 1
        self.average = own.loss_memory * self.average + (1 - own.loss_memory) * seen.loss
        self.rates = [*self.rates[-own.loss_window :], sign * (before - self.average) / seen.seconds]

    def is_slower(self, own: DescentSettings) -> bool | None:
        """Return whether the loss falls more slowly than ``loss_window`` epochs ago; None until there were so many."""
        return self.rates[-1] < self.rates[0] if len(self.rates) > own.loss_window else None


class SylvieState(msgspec.Struct):
    """The state of :class:`SylvieBits`."""

    base: MessageBits
    descent: LossDescent


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
        self.base, self.descent, self._own = CHOICES[0], LossDescent(None, []), setup.config.section(DescentSettings)
        self._classes = row_classes(setup.world, setup.all_facts)

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges."""
        for facts, by_base in zip(self.all_facts, self._classes, strict=True):
            facts.exchange.row_bits = by_base[self.base]
        return {"base_bits": self.base}

    def observe(self, seen: Observation) -> None:
        """Double or halve the base bits (Eq. 5)."""
        self.descent.add(seen, self._own)
        slower = self.descent.is_slower(self._own)
        if slower is not None:
            self.base = min(self.base * 2, CHOICES[-1]) if slower else max(self.base // 2, CHOICES[0])


@STALENESS_POLICIES.register("sylvie")
class SylvieStaleness(StalenessPolicy):
    """Rows of the previous epoch, but fresh rows after an epoch in which the loss fell more slowly than before (§V-B)."""

    needs_clock = True
    state_type = LossDescent

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._descent, self._own = LossDescent(None, []), setup.config.section(DescentSettings)

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set all exchanges of an epoch to the same freshness."""
        for facts in all_facts:
            facts.exchange.freshness = FRESH if self._descent.is_slower(self._own) else STALE

    def observe(self, seen: Observation) -> None:
        """Add the loss and the seconds of the epoch."""
        self._descent.add(seen, self._own)

    def state(self) -> dict[str, Any]:
        """The descent of the loss."""
        return msgspec.to_builtins(self._descent)

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from :meth:`state`."""
        self._descent = typed.validated(state, LossDescent, "the state of a policy")


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
