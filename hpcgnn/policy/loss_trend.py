"""The descent of the loss by epoch, and its noise; no time is part of it.

The losses of two successive spans of ``loss_window`` + 1 epochs, which share one epoch, are fitted by one line each, by least
squares. What the lines leave over is the noise of a loss, from which the standard error of a slope follows. The loss *stalls* if
its descent has fallen to less than half of that of the span before, by more than three standard errors. So neither a loss whose
noise is larger than its changes stalls, nor one that levels off slowly, as every loss does that converges, nor one that stays
where it is.

It *clearly falls* if the last slope is below zero by more than three standard errors, and the loss does not stall.

All sums are rounded once (``math.fsum``): ranks on different processors come to the same decision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from hpcgnn.base.typed import Finite
from hpcgnn.policy.config import DescentSettings

_LEFT = 0.5  # share of the descent of the span before, below which a loss stalls
_ERRORS = 3  # standard errors by which it must be below
_LARGEST = 1e100


class Slopes(NamedTuple):
    """The slopes of both spans, in units of the loss an epoch, below 0 if the loss falls, and the standard error of one."""

    before: float
    now: float
    error: float
    stalls: bool


class LossTrend(msgspec.Struct):
    """The losses by which the descent is known; also their state in a checkpoint.

    losses: of the last epochs, the latest last. average: the paper's running average F of all losses. rates: its changes.
    """

    losses: list[Finite] = []
    average: Finite | None = None
    rates: list[Finite] = []

    def add(self, loss: float, own: DescentSettings) -> None:
        """Add the loss of an epoch."""
        self.losses = [*self.losses[-2 * own.loss_window :], loss]
        if self.average is not None:
            change = (1 - own.loss_memory) * (loss - self.average)
            self.rates = [*self.rates[-own.loss_window :], change]
            self.average += change
        else:
            self.average = loss

    def slopes(self, own: DescentSettings) -> Slopes | None:
        """The slopes of the last two spans; None until there are so many losses, and for losses whose squares overflow."""
        if len(self.losses) <= 2 * own.loss_window or max(map(abs, self.losses)) > _LARGEST:
            return None
        losses, window = self.losses, own.loss_window
        # (window + 1) weights of a span's losses, whose weighted sum is its slope
        offsets = [place - window / 2 for place in range(window + 1)]
        spread = math.fsum(offset * offset for offset in offsets)
        weights = [offset / spread for offset in offsets]
        spans = [[loss - losses[first] for loss in losses[first : first + window + 1]] for first in (0, window)]
        before, now = (math.fsum(w * y for w, y in zip(weights, span, strict=True)) for span in spans)
        off_line = []
        for span, slope in zip(spans, (before, now), strict=True):
            middle = math.fsum(span) / len(span)
            off_line += [y - middle - slope * offset for y, offset in zip(span, offsets, strict=True)]
        free = 2 * window - 2  # losses of both spans less the numbers of both lines
        noise = math.sqrt(math.fsum(y * y for y in off_line) / free) if free else 0.0
        # the weights of all losses in the difference, by which a stall is known; both spans have the loss in the middle
        early, late = [-_LEFT * w for w in weights], weights
        all_weights = [*early[:-1], early[-1] + late[0], *late[1:]]
        error = noise * math.sqrt(math.fsum(w * w for w in all_weights))
        return Slopes(before, now, noise / math.sqrt(spread), now - _LEFT * before > _ERRORS * error)

    def is_slower(self, own: DescentSettings) -> bool | None:
        """Return whether the loss stalls; None until there are enough losses. By ``--descent-rule printed``: whether the rate
        (F_t - F_{t-1}) is below that of ``loss_window`` epochs ago, which means that the loss falls faster.
        """
        if own.descent_rule == "printed":
            return self.rates[-1] < self.rates[0] if len(self.rates) > own.loss_window else None
        slopes = self.slopes(own)
        return None if slopes is None else slopes.stalls

    def needs_fresh_rows(self, own: DescentSettings) -> bool:
        """Return whether the loss neither clearly falls nor stays the same to the last digit; True until there are enough
        losses, since rows change most in the first epochs. By ``--descent-rule printed``: as :meth:`is_slower`.
        """
        if own.descent_rule == "printed":
            return bool(self.is_slower(own))
        slopes = self.slopes(own)
        if slopes is None:
            return True
        clearly_falls = slopes.now < -_ERRORS * slopes.error and not slopes.stalls
        return not clearly_falls and (slopes.now, slopes.error) != (0, 0)

    def record(self, own: DescentSettings) -> dict[str, float]:
        """The numbers of the decision, for the records; empty until there are enough losses."""
        slopes = None if own.descent_rule == "printed" else self.slopes(own)
        if slopes is None:
            return {}
        return {"slope_before": slopes.before, "slope": slopes.now, "slope_error": slopes.error}
