"""Eq. 12's assignment at scale: ranks agree on prices of seconds, and each rank chooses bit-widths for its own groups.

Z times its weight w is the maximum of ``p @ seconds`` over prices p >= 0 with the sum w, one for each rank's sending and one
for each rank's receiving (Lagrangian duality). For given prices the problem separates into groups, and the sum of their costs
is a lower bound of the optimum; the best prices give the largest bound. They are found by mirror ascent on the simplex with
Polyak's steps. A round is one all-reduce of O(P) numbers, and nothing is gathered.

Between two ranks, groups get more bits in the order of the variance that a second saves, so the seconds of a pair of ranks
determine its groups. If many groups are alike, prices choose all of them or none; the assignment therefore gives each pair the
seconds that it took on average over the last rounds. The difference from the bound is known, see
:attr:`~hpcgnn.policy.problem.Assignment.gap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.policy.problem import (
    CHOICES,
    Assignment,
    Groups,
    Problem,
    Scales,
    evaluated,
    own_loads,
    quantization_variance,
)
from hpcgnn.world import World

_ROUNDS = 400
_GOOD_GAP = 0.005
# The search ends with a gap that is almost good if it shrank by less than this share in this number of rounds.
_IDLE_ROUNDS, _NOTABLE = 50, 0.05
_MEMORY = 0.9  # of the average of pairs' seconds, from one round to the next


@dataclass(frozen=True)
class Ladder:
    """The steps from the fewest bits upwards for the groups of one pair of ranks, best first.

    group: (S,) int64. price: (S,) float64 descending, the scaled variance that a second saves. seconds, saved: (S + 1,) sums
    over the first steps.
    """

    receiver: int
    group: np.ndarray
    price: np.ndarray
    seconds: np.ndarray
    saved: np.ndarray

    def steps_at(self, price: float) -> int:
        """The number of steps that are worth ``price`` per second."""
        return int(np.searchsorted(-self.price, -price, side="left"))

    def steps_within(self, seconds: float) -> int:
        """The number of steps that take at most ``seconds``."""
        return int(np.searchsorted(self.seconds, seconds, side="right")) - 1


def ladders(groups: Groups, by: Scales) -> list[Ladder]:
    """A ladder for each rank to which this rank sends."""
    choices = np.array(CHOICES)
    saved = -np.diff(by.variance * quantization_variance(groups.beta[:, None], choices), axis=1).T  # (steps, G)
    seconds = groups.seconds_per_bit * np.diff(choices)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(seconds > 0, saved / seconds, np.inf)
    group = np.broadcast_to(np.arange(groups.beta.size), saved.shape)
    found = []
    for receiver in np.unique(groups.receiver):
        own = groups.receiver == receiver
        columns = [array[:, own].ravel() for array in (group, price, seconds, saved)]
        order = np.argsort(-columns[1], kind="stable")  # a group's first step is worth more than its second
        own_group, own_price, own_seconds, own_saved = (column[order] for column in columns)
        sums = (np.concatenate([[0.0], np.cumsum(column)]) for column in (own_seconds, own_saved))
        found.append(Ladder(int(receiver), own_group, own_price, *sums))
    return found


def by_prices(world: World, problems: list[tuple[Problem, Scales]], good_gap: float = _GOOD_GAP) -> list[Assignment]:
    """Assignments with a known gap to the optimum, see :func:`~hpcgnn.policy.problem.evaluated`. Collective."""
    if not problems:
        return []
    fixed = world.allreduce(np.array([problem.fixed for problem, _ in problems]))
    markets = [Market(world, problem.groups, own, by) for (problem, by), own in zip(problems, fixed, strict=True)]
    settle(world, [market for market in markets if not market.is_closed], good_gap)
    return [
        evaluated(
            world, problem.groups, market.bits(), problem.fixed, by, market.bound if market.bound > -np.inf else None
        )
        for (problem, by), market in zip(problems, markets, strict=True)
    ]


def settle(world: World, markets: list[Market], good_gap: float) -> None:
    """Find prices whose bounds are within ``good_gap`` of the objectives. All markets share each round. Collective."""
    for _ in range(_ROUNDS):
        if not markets:
            return
        offers = np.concatenate([market.offer() for market in markets])
        sums = np.split(world.allreduce(offers, what="assignments of bits"), len(markets))
        for market, own in zip(markets, sums, strict=True):
            market.take(own, good_gap)
        markets = [market for market in markets if not market.is_closed]


class Market:
    """Prices, which are the same on every rank, and the choices of this rank's pairs at these prices."""

    def __init__(self, world: World, groups: Groups, fixed: np.ndarray, by: Scales) -> None:
        self.world, self.groups, self.fixed, self.by = world, groups, fixed, by
        self.ladders = ladders(groups, by)
        self.receivers = np.array([ladder.receiver for ladder in self.ladders], np.int64)
        self.least_seconds = CHOICES[0] * np.array(
            [groups.seconds_per_bit[groups.receiver == ladder.receiver].sum() for ladder in self.ladders]
        )
        self.least_bits_cost = by.variance * float(quantization_variance(groups.beta, np.array(CHOICES[0])).sum())
        self.prices = np.full(2 * world.size, by.seconds / (2 * world.size))
        self.average: np.ndarray | None = None
        self.candidates: list[list[int]] = []
        self.bound, self.objective = -np.inf, np.inf
        self._gap, self._idle = np.inf, 0
        # If one of the objectives cannot change, this start is optimal for the other one, and no search is needed.
        self.is_settled = self.is_closed = by.seconds == 0 or by.variance == 0
        self.best = [len(ladder.group) if by.seconds == 0 else 0 for ladder in self.ladders]

    def offer(self) -> np.ndarray:
        """(4 + 4P,) the choices of this rank's pairs at the present prices, which are summed over ranks for :meth:`take`."""
        chosen = [ladder.steps_at(price) for ladder, price in zip(self.ladders, self._own_prices(), strict=True)]
        taken = self._taken(chosen)
        self.average = taken if self.average is None else _MEMORY * self.average + (1 - _MEMORY) * taken
        rounded = [ladder.steps_within(most) for ladder, most in zip(self.ladders, self.average, strict=True)]
        self.candidates = [chosen, rounded]
        loads, costs = map(self._loads, self.candidates), [self._cost(steps) for steps in self.candidates]
        first, *others = loads
        return np.concatenate([[self.is_settled, costs[0] + self.prices @ first], costs, first, *others])

    def take(self, sums: np.ndarray, good_gap: float) -> None:
        """Take the sums: keep the best bound and assignment, and move the prices or end, in the same round on all ranks."""
        (settled, value), total = sums[:2], sums[2:]
        if settled:
            self.is_closed = True
            return
        seconds = total[len(self.candidates) :].reshape(len(self.candidates), -1) + self.fixed
        for steps, cost, load in zip(self.candidates, total, seconds, strict=False):
            objective = float(cost) + self.by.objective(0.0, float(load.max()))
            if objective < self.objective:
                self.objective, self.best = objective, steps
        value = float(value + self.prices @ self.fixed) + self.by.objective(0.0, 0.0)
        self.bound = max(self.bound, value)
        slope = seconds[0] - seconds[0].mean()
        steepest = np.abs(slope).max()
        gap = self.objective - self.bound
        self._idle = 0 if gap < (1 - _NOTABLE) * self._gap else self._idle + 1
        self._gap = gap if self._idle == 0 else self._gap
        is_idle = self._idle > _IDLE_ROUNDS and gap <= 2 * good_gap * self.objective
        self.is_settled = gap <= good_gap * self.objective or steepest == 0 or is_idle
        if not self.is_settled:
            step = (self.objective - value) / (self.by.seconds * steepest**2)
            self.prices = self.prices * np.exp(np.clip(step * slope, -2.0, 2.0))
            self.prices *= self.by.seconds / self.prices.sum()

    def bits(self) -> np.ndarray:
        """(G,) bit-widths of the best assignment so far."""
        level = np.zeros(self.groups.beta.size, np.int64)
        for ladder, count in zip(self.ladders, self.best, strict=True):
            np.add.at(level, ladder.group[:count], 1)
        return np.array(CHOICES)[level]

    def _own_prices(self) -> np.ndarray:
        """The price of a second for each of this rank's pairs: that of the sender plus that of the receiver."""
        return self.prices[self.world.rank] + self.prices[self.world.size + self.receivers]

    def _taken(self, steps: list[int]) -> np.ndarray:
        return np.array([ladder.seconds[count] for ladder, count in zip(self.ladders, steps, strict=True)])

    def _loads(self, steps: list[int]) -> np.ndarray:
        return own_loads(self.world, self.receivers, self.least_seconds + self._taken(steps))

    def _cost(self, steps: list[int]) -> float:
        """The scaled variance."""
        saved = sum(ladder.saved[count] for ladder, count in zip(self.ladders, steps, strict=True))
        return self.least_bits_cost - float(saved)
