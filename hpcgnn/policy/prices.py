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
from hpcgnn.policy.problem import CHOICES, Assignment, Groups, Scales, evaluated, left_over, own_loads

_ROUNDS = 400
_GOOD_GAP = 0.002
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


def by_prices(world: World, groups: Groups, fixed: np.ndarray, by: Scales, good_gap: float = _GOOD_GAP) -> Assignment:
    """An assignment whose distance from the optimum is known. Collective; see :func:`~hpcgnn.policy.problem.evaluated`."""
    market = Market(world, groups, world.allreduce(fixed), by)
    bound = None
    if by.seconds > 0 and by.variance > 0:
        market.settle(good_gap)
        bound = market.bound
    else:  # one of the objectives cannot change, and the other one is best so
        market.best = [len(ladder.group) if by.seconds == 0 else 0 for ladder in market.ladders]
    return evaluated(world, groups, market.bits(market.best), fixed, by, bound)


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
        self.bound, self.objective = -np.inf, np.inf
        self.best = [0] * len(self.ladders)

    def settle(self, good_gap: float) -> None:
        """Find prices whose bound is within ``good_gap`` of an assignment's objective. Collective."""
        prices = np.full(2 * self.world.size, self.by.seconds / (2 * self.world.size))
        average: np.ndarray | None = None
        is_settled = False
        for _ in range(_ROUNDS):
            chosen = [ladder.steps_at(price) for ladder, price in zip(self.ladders, self._own(prices), strict=True)]
            taken = self._taken(chosen)
            average = taken if average is None else _MEMORY * average + (1 - _MEMORY) * taken
            rounded = [ladder.steps_within(most) for ladder, most in zip(self.ladders, average, strict=True)]
            value, seconds, over = self._round(prices, [chosen, rounded], is_settled)
            if over:  # on all ranks in the same round, whatever the last bits of their sums
                return
            self.bound = max(self.bound, value)
            slope = seconds - seconds.mean()
            steepest = np.abs(slope).max()
            is_settled = self.objective - self.bound <= good_gap * self.objective or steepest == 0
            if is_settled:
                continue
            step = (self.objective - value) / (self.by.seconds * steepest**2)
            prices = prices * np.exp(np.clip(step * slope, -2.0, 2.0))
            prices *= self.by.seconds / prices.sum()

    def bits(self, steps: list[int]) -> np.ndarray:
        """(G,) bits after so many steps of each ladder."""
        level = np.zeros(self.groups.beta.size, np.int64)
        for ladder, count in zip(self.ladders, steps, strict=True):
            np.add.at(level, ladder.group[:count], 1)
        return np.array(CHOICES)[level]

    def _own(self, prices: np.ndarray) -> np.ndarray:
        """What a second of each of this rank's pairs costs: for its sender and for its receiver."""
        return prices[self.world.rank] + prices[self.world.size + self.receivers]

    def _taken(self, steps: list[int]) -> np.ndarray:
        return np.array([ladder.seconds[count] for ladder, count in zip(self.ladders, steps, strict=True)])

    def _round(
        self, prices: np.ndarray, candidates: list[list[int]], is_settled: bool
    ) -> tuple[float, np.ndarray, bool]:
        """The bound at ``prices``, the (2P,) seconds of the first candidate, and whether any rank ``is_settled``. Collective.

        Remembers the best candidate.
        """
        size = 2 * self.world.size
        mine = [self._loads(steps) for steps in candidates]
        costs = [self._cost(steps) for steps in candidates]
        value = costs[0] + float(prices @ mine[0])
        sums = self.world.allreduce(np.concatenate([[is_settled, value], costs, *mine]), what="an assignment of bits")
        settled, bound, total = sums[0], sums[1], sums[2:]
        seconds = total[len(candidates) :].reshape(len(candidates), size) + self.fixed
        for steps, cost, load in zip(candidates, total, seconds, strict=False):
            objective = float(cost) + self.by.objective(0.0, float(load.max()))
            if objective < self.objective:
                self.objective, self.best = objective, steps
        return float(bound + prices @ self.fixed) + self.by.objective(0.0, 0.0), seconds[0], settled > 0

    def _loads(self, steps: list[int]) -> np.ndarray:
        return own_loads(self.world, self.receivers, self.least_seconds + self._taken(steps))

    def _cost(self, steps: list[int]) -> float:
        """The scaled variance."""
        saved = sum(ladder.saved[count] for ladder, count in zip(self.ladders, steps, strict=True))
        return self.least_bits_cost - float(saved)
