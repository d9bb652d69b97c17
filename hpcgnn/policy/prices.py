"""Eq. 12's assignment at scale: ranks agree on prices of seconds, and each one alone chooses bits for its own groups.

Z times its weight w is the maximum of ``p @ seconds`` over prices p >= 0 with the sum w, one for each rank's sending and one
for each rank's receiving. For given prices the problem falls apart into groups, and what they cost together is at most the
optimum: the best prices give the largest such bound. They are found by mirror ascent on the simplex with Polyak's steps;
a round is one all-reduce of O(P) numbers, and nothing is gathered.

Between two ranks, groups are improved in the order of how much variance a second saves, so that a pair's groups follow from
the seconds that they may take. Prices choose many groups or none where these are alike; the assignment therefore gives each
pair the seconds that it took on average over the last rounds. How far it is from the bound is known, and is the answer's
:attr:`~hpcgnn.policy.problem.Assignment.gap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import World
from hpcgnn.policy.problem import CHOICES, Assignment, Groups, Problem, Scales, evaluated, left_over, own_loads

_ROUNDS = 400
_GOOD_GAP = 0.005
# A gap that is almost good stays as it is where in so many rounds it lost less than this share.
_IDLE_ROUNDS, _NOTABLE = 50, 0.05
_MEMORY = 0.9  # of the average of pairs' seconds, from one round to the next


@dataclass(frozen=True)
class Ladder:
    """The steps up from the fewest bits for the groups of one pair, best first.

    group: (S,) int64. price: (S,) float64 descending, the scaled variance that a second buys. seconds, saved: (S + 1,) sums
    over the first steps.
    """

    receiver: int
    group: np.ndarray
    price: np.ndarray
    seconds: np.ndarray
    saved: np.ndarray

    def steps_at(self, price: float) -> int:
        """How many steps are worth ``price`` a second."""
        return int(np.searchsorted(-self.price, -price, side="left"))

    def steps_within(self, seconds: float) -> int:
        """How many steps take at most ``seconds``."""
        return int(np.searchsorted(self.seconds, seconds, side="right")) - 1


def ladders(groups: Groups, by: Scales) -> list[Ladder]:
    """One for each rank that this one sends to."""
    choices = np.array(CHOICES)
    saved = -np.diff(by.variance * left_over(groups.beta[:, None], choices), axis=1).T  # (steps, G)
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
    """Assignments whose distance from the optimum is known. Collective; see :func:`~hpcgnn.policy.problem.evaluated`."""
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
    """Find prices whose bounds are within ``good_gap`` of assignments' objectives; one round for all markets. Collective."""
    for _ in range(_ROUNDS):
        if not markets:
            return
        offers = np.concatenate([market.offer() for market in markets])
        sums = np.split(world.allreduce(offers, what="assignments of bits"), len(markets))
        for market, own in zip(markets, sums, strict=True):
            market.take(own, good_gap)
        markets = [market for market in markets if not market.is_closed]


class Market:
    """Prices, the same on every rank, and what this rank's pairs do at them."""

    def __init__(self, world: World, groups: Groups, fixed: np.ndarray, by: Scales) -> None:
        self.world, self.groups, self.fixed, self.by = world, groups, fixed, by
        self.ladders = ladders(groups, by)
        self.receivers = np.array([ladder.receiver for ladder in self.ladders], np.int64)
        self.least_seconds = CHOICES[0] * np.array(
            [groups.seconds_per_bit[groups.receiver == ladder.receiver].sum() for ladder in self.ladders]
        )
        self.least_bits_cost = by.variance * float(left_over(groups.beta, np.array(CHOICES[0])).sum())
        self.prices = np.full(2 * world.size, by.seconds / (2 * world.size))
        self.average: np.ndarray | None = None
        self.candidates: list[list[int]] = []
        self.bound, self.objective = -np.inf, np.inf
        self._gap, self._idle = np.inf, 0
        # Where one of the objectives cannot change, the other one is best so, and nothing is to be found.
        self.is_settled = self.is_closed = by.seconds == 0 or by.variance == 0
        self.best = [len(ladder.group) if by.seconds == 0 else 0 for ladder in self.ladders]

    def offer(self) -> np.ndarray:
        """The choices of this rank's pairs at the present prices, to be summed over ranks for :meth:`take`: (4 + 4P,)."""
        chosen = [ladder.steps_at(price) for ladder, price in zip(self.ladders, self._own_prices(), strict=True)]
        taken = self._taken(chosen)
        self.average = taken if self.average is None else _MEMORY * self.average + (1 - _MEMORY) * taken
        rounded = [ladder.steps_within(most) for ladder, most in zip(self.ladders, self.average, strict=True)]
        self.candidates = [chosen, rounded]
        loads, costs = map(self._loads, self.candidates), [self._cost(steps) for steps in self.candidates]
        first, *others = loads
        return np.concatenate([[self.is_settled, costs[0] + self.prices @ first], costs, first, *others])

    def take(self, sums: np.ndarray, good_gap: float) -> None:
        """Note bound and objectives, and move the prices; or close, in the same round on all ranks, once one has settled."""
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
        """(G,) bits of the best assignment so far."""
        level = np.zeros(self.groups.beta.size, np.int64)
        for ladder, count in zip(self.ladders, self.best, strict=True):
            np.add.at(level, ladder.group[:count], 1)
        return np.array(CHOICES)[level]

    def _own_prices(self) -> np.ndarray:
        """The price of a second of each of this rank's pairs: for its sender and for its receiver."""
        return self.prices[self.world.rank] + self.prices[self.world.size + self.receivers]

    def _taken(self, steps: list[int]) -> np.ndarray:
        return np.array([ladder.seconds[count] for ladder, count in zip(self.ladders, steps, strict=True)])

    def _loads(self, steps: list[int]) -> np.ndarray:
        return own_loads(self.world, self.receivers, self.least_seconds + self._taken(steps))

    def _cost(self, steps: list[int]) -> float:
        """The scaled variance."""
        saved = sum(ladder.saved[count] for ladder, count in zip(self.ladders, steps, strict=True))
        return self.least_bits_cost - float(saved)
