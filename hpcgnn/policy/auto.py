"""Bit-widths and staleness that are tried out in training: the clock decides about time, and the change of rows about accuracy.

A rule that predicts the seconds of an epoch from bytes and links must know how a network shares its links, which part of a
message is hidden by computation, and how long rows of each bit-width are decoded. A trial of a few epochs measures all of it. So
each option trains for some epochs, the options that are expected to be fast first, and the search ends at the first one that is
slower. Of those that are about as fast as the fastest, the one with the smallest error is taken.

Bits: 2, 4 and 8 on average, which rows get in the order in which they help (:mod:`hpcgnn.policy.row_errors`). On a slow
network, more than 2 bits are tried for a few epochs; where messages are hidden anyway, rows get 8 bits at no cost.

Staleness: an exchange may use rows of the previous epoch while they move by less than their noise (:class:`RowChange`), because
training has this noise in any case. When most exchanges are so calm, a trial shows whether stale rows save time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hpcgnn.base.typed import Count, NotNegative
from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.base import ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.config import AUTO, BITS_POLICIES, STALENESS_POLICIES, PeriodSettings
from hpcgnn.policy.row_errors import OrderedBits

_BLOCK = 5  # epochs of a trial of one option; the first one makes codecs and memory, and is left out
# A trial of bits ends early after so many epochs of a block, if they are so many times as long as those of an option before.
_FAR_SLOWER = {2: 1.5, 3: 1.15}
_FIRST_STALE = 4 * _BLOCK  # epoch of the first trial of stale rows: those of bits are over by then
_BITS_TOLERANCE = 1.03  # more bits are taken if an epoch is at most so much longer
_STALE_TOLERANCE = 1.05  # and fresh rows
# Epochs from one comparison of rows to the next. The first one that tells noise from learning is the fifth: before _FIRST_STALE.
_COMPARED = 4
_CALM = 0.02  # squared change of rows in an epoch, relative to their square, that is small without any noise


class Trial(msgspec.Struct):
    """A search among numbered options, in the order in which they are tried; later ones have smaller errors. seconds: of the
    epochs of each option so far. chosen: the result. due: the epoch of the next trial, once there is a result.
    """

    seconds: list[list[NotNegative]] = msgspec.field(default_factory=lambda: [[]])
    chosen: Count | None = None
    due: Count = 0

    @property
    def current(self) -> int:
        """The number of the option to use now."""
        return len(self.seconds) - 1 if self.chosen is None else self.chosen

    def is_over(self, epoch: int) -> bool:
        """Return whether another trial begins."""
        return self.chosen is not None and epoch >= self.due

    def add(self, seconds: float, options: int, tolerance: float, due: int, early: Mapping[int, float]) -> None:
        """Add the ``seconds`` of an epoch with the current option, one of ``options``; once there is a result, do nothing.

        due: the epoch of the next trial. early: by number of epochs, how many times as long as before those of a block may be.
        """
        if self.chosen is not None:
            return
        self.seconds[-1].append(seconds)
        if len(self.seconds[-1]) < _BLOCK and not self._is_far_slower(early):
            return
        typical = self.typical()
        fast_enough = [each <= tolerance * min(typical) for each in typical]
        if fast_enough[-1] and len(typical) < options:
            self.seconds.append([])
        else:
            self.chosen = max(number for number, is_fast in enumerate(fast_enough) if is_fast)
            self.due = due

    def _is_far_slower(self, early: Mapping[int, float]) -> bool:
        """Return whether the current option need not be tried for longer."""
        if len(self.seconds) == 1 or (factor := early.get(len(self.seconds[-1]))) is None:
            return False
        *before, last = self.typical()
        return last > factor * min(before)

    def typical(self) -> list[float]:
        """The seconds of an epoch of each option: the mean without the first epoch and without the longest one of several."""
        counted = [sorted(block[1:])[: max(1, len(block) - 2)] for block in self.seconds if len(block) > 1]
        return [sum(block) / len(block) for block in counted]

    def details(self, names: tuple[Any, ...]) -> dict[str, Any]:
        """The seconds by option, for the records."""
        return {str(name): each for name, each in zip(names, self.typical(), strict=False)}


def _next_period(epoch: int, period: int) -> int:
    """The first epoch of the period after that of ``epoch``, so that trials of bits and of stale rows keep apart."""
    return (epoch // period + 1) * period


class AutoBitsState(msgspec.Struct):
    """The state of :class:`AutoBits`."""

    trial: Trial
    due: Count | None = None  # files of earlier versions have none


@BITS_POLICIES.register(AUTO)
class AutoBits(OrderedBits):
    """The most bits whose epochs are about as short as those with the fewest, tried again every ``bits_period`` epochs, and the
    rows that get them.
    """

    needs_clock = True
    state_type = AutoBitsState

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.trial = Trial()

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the mean bits of the trial, or of its result, in all exchanges. Collective."""
        if self.trial.is_over(epoch):
            self.trial = Trial()
        bits = CHOICES[self.trial.current]
        self._set_bits(epoch, bits)
        return {"bits": bits, "seconds_by_bits": self.trial.details(CHOICES)}

    def observe(self, seen: Observation) -> None:
        """Add the seconds of the epoch to the trial, which begins once rows have an order: the first epoch also compiles."""
        super().observe(seen)
        if self._errors is not None and self._errors.is_ordered:
            due = _next_period(seen.epoch, self._period)
            self.trial.add(seen.seconds, len(CHOICES), _BITS_TOLERANCE, due, _FAR_SLOWER)

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """As :meth:`OrderedBits.load`; other parts begin with a trial."""
        super().load(state, rank_state)
        self.trial = self.trial if rank_state else Trial()


class AutoStalenessState(msgspec.Struct):
    """The state of :class:`AutoStaleness`. calm: whether the rows of each exchange move by less than their noise. trial: None
    before most of them do.
    """

    calm: dict[str, bool]
    trial: Trial | None = None


@STALENESS_POLICIES.register(AUTO)
class AutoStaleness(StalenessPolicy):
    """Rows of the previous epoch where they have moved by less than their noise, if that makes epochs shorter."""

    needs_clock = True
    compares_every = _COMPARED
    state_type = AutoStalenessState
    options = (STALE, FRESH)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.calm: dict[str, bool] = {}
        self.trial: Trial | None = None
        self._period = setup.config.section(PeriodSettings).bits_period

    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set the freshness of each exchange. Not collective."""
        usual = FRESH if self.trial is None else self.options[self.trial.current]
        for facts in all_facts:
            facts.exchange.freshness = usual if self.calm.get(facts.name, False) else FRESH

    def observe(self, seen: Observation) -> None:
        """Note which exchanges are calm, and add the seconds of the epoch to the trial."""
        for name, change in seen.changes.items():
            self.calm[name] = 2 * change.distance <= max(_CALM, change.noise) * change.epochs**2
        if self.trial is not None and not self.trial.is_over(seen.epoch):
            due = _next_period(seen.epoch, self._period) + min(_FIRST_STALE, self._period // 2)
            self.trial.add(seen.seconds, len(self.options), _STALE_TOLERANCE, due, {})
        else:
            is_calm = seen.epoch >= _FIRST_STALE and 2 * sum(self.calm.values()) > len(self.calm)
            self.trial = Trial() if is_calm else None
