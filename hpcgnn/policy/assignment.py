"""Bit-widths for groups of rows: the bi-objective problem of AdaQP's Eq. 12, for exchanges of all ranks, and its solver.

A group g of rows that one rank sends to another costs ``seconds_per_bit[g] * bits`` on the wire and adds the variance
``beta[g] / (2**bits - 1)**2`` to gradients. The objective, which is minimised for each exchange, is

    weight * (sum of variances) / V  +  (1 - weight) * (Z - Z0) / T,

where Z is an upper bound of the seconds of every rank's sending and of every rank's receiving (the paper's rounds of a ring do
not exist with alltoallv), Z0 is Z with the fewest bits, and V is the range of the variance. T is the time of an epoch with the
fewest bits, shared out among exchanges by their Z0; in the paper's own rule, it is the range of Z. The problem is solved by
prices of seconds; docs/explanation/adaptive-bits.md explains them.

Shapes: G groups, E exchanges, P ranks, p pairs of an exchange, a sender and a receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

CHOICES = (2, 4, 8)
# Up to this number of groups in all exchanges, rank 0 holds the problem, in 0.3 GB of memory at most.
GATHERED_GROUPS = 1 << 20
_ROUNDS, _GOOD_GAP = 60, 0.01  # the search ends with this gap, or after these rounds
_POWER = 3.0  # with which prices follow loads: a rank whose load is half of the largest pays an eighth of before
_MEMORY = 0.8  # of the average of pairs' seconds, from one round to the next
Total = Callable[[np.ndarray], np.ndarray]  # the sum over ranks of an array; the same bits on all ranks


class NoAssignment(Exception):
    """Raised on all ranks if there is no assignment."""


@dataclass(frozen=True)
class Problem:
    """The problem of one exchange, with the groups of all ranks or of one rank; (G,) arrays but for ``fixed``."""

    sender: np.ndarray  # int64 rank
    receiver: np.ndarray  # int64 rank
    beta: np.ndarray  # float64 sum of Eq. 11's beta over the rows
    seconds_per_bit: np.ndarray  # float64 seconds on the wire that one more bit of each value adds
    bits_now: np.ndarray  # float64 mean bit-width of the rows up to now
    fixed: np.ndarray  # (2P,) seconds of each rank to send, and then to receive, at any bit-width; all ranks' shares


@dataclass(frozen=True)
class Assignment:
    """An assignment of bit-widths to one exchange."""

    bits: np.ndarray  # (G,) uint8
    objective: float  # value of Eq. 12
    bound: float  # a lower bound of the objective of every assignment
    seconds: float  # Z
    least_seconds: float  # Z0
    variance: float  # the sum over the groups of all ranks
    beta: float  # likewise, the sum of beta

    @property
    def gap(self) -> float:
        """An upper bound of the relative difference between the objective and the optimum."""
        return 0.0 if self.objective <= 0 else max(0.0, (self.objective - self.bound) / self.objective)


@dataclass(frozen=True)
class Aim:
    """The aim of assignments. weight: lambda; 0 minimises the seconds, 1 the variance. epoch_seconds: those of an epoch with
    ``bits_now``, against which seconds are weighed; None: the paper's rule, by which only the ratios of seconds matter.
    """

    weight: float
    epoch_seconds: float | None = None


def quantization_variance(beta: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The variance of groups with the bit-widths ``bits``."""
    return beta / (2.0**bits - 1) ** 2


def own_loads(world_size: int, rank: int, receiver: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """(2P,) seconds of sending and receiving of each rank, from (n,) receivers and ``rank``'s seconds of sending to each."""
    mine = np.zeros(2 * world_size)
    mine[rank] = seconds.sum()
    mine[world_size:] = np.bincount(receiver, seconds, world_size)
    return mine


def solve(problems: list[Problem], aim: Aim, total: Total | None = None) -> list[Assignment]:
    """Bit-widths for all ``problems``, with a known gap to the optimum. Collective if ``total`` is.

    total: where each rank has its own groups alone, the sum over ranks; None: the problems hold the groups of all ranks. An
    assignment then also gives away the seconds that are left over.

    Raises:
        NoAssignment: if there is none; with ``total``, on every rank.
    """
    if not problems:
        return []
    summed = total or (lambda values: values)
    wrong = [not (np.isfinite(each.beta).all() and np.isfinite(each.seconds_per_bit).all()) for each in problems]
    if summed(np.array(wrong, np.float64)).any():
        raise NoAssignment("the ranges of some rows, or the costs of some links, are not finite numbers")
    market = _Market(_Groups(problems), aim, summed)
    steps, bound = market.search()
    return market.assignments(market.filled(steps) if total is None else steps, bound)


# -- prices ------------------------------------------------------------------------------------------------------------


class _Groups:
    """The groups of all problems, one exchange after the other; (G,) arrays as in :class:`Problem`."""

    def __init__(self, problems: list[Problem]) -> None:
        self.sizes = [each.beta.size for each in problems]
        self.exchange = np.repeat(np.arange(len(problems)), self.sizes)
        self.fixed = np.stack([each.fixed for each in problems])  # (E, 2P)
        self.num_exchanges, self.num_ranks = self.fixed.shape[0], self.fixed.shape[1] // 2
        self.sender, self.receiver, self.beta, self.seconds_per_bit, self.bits_now = (
            np.concatenate([getattr(each, name) for each in problems])
            for name in ("sender", "receiver", "beta", "seconds_per_bit", "bits_now")
        )

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """(p,) numbers of the pairs, and (G,) the pair of each group. A number is (exchange * P + sender) * P + receiver."""
        number = (self.exchange * self.num_ranks + self.sender) * self.num_ranks + self.receiver
        return np.unique(number, return_inverse=True)


class _Ladders:
    """The steps from the fewest bits upwards of all groups of a pair, those that save most variance in a second first; the ladder
    of one pair stands behind the other's. S steps, ``first`` to ``last`` (p,) of each pair."""

    def __init__(self, groups: _Groups) -> None:
        numbers, pair_of = groups.pairs
        choices = np.array(CHOICES)
        saved = -np.diff(quantization_variance(groups.beta[:, None], choices), axis=1).T  # (steps, G)
        seconds = groups.seconds_per_bit * np.diff(choices)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            price = np.where(seconds > 0, saved / seconds, np.inf).ravel()
        of_step = np.tile(pair_of, len(choices) - 1)
        order = np.lexsort((-price, of_step))  # stable: a group's first step is worth more than its second
        of_step, price = of_step[order], price[order]
        self.group = np.tile(np.arange(groups.beta.size), len(choices) - 1)[order]
        self.step_seconds, self.step_saved = seconds.ravel()[order], saved.ravel()[order]
        # (S + 1,) sums over all steps before one
        self.seconds, self.saved = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (self.step_seconds, self.step_saved)
        )
        counts = np.bincount(of_step, minlength=numbers.size)
        self.last = np.cumsum(counts)
        self.first = self.last - counts
        # A step is known by its pair and by the number of dearer steps anywhere, so one search finds a place in each ladder.
        self._ascending, self._pair = np.sort(price), np.arange(numbers.size) * (price.size + 1)
        self._key = self._pair[of_step] + price.size - np.searchsorted(self._ascending, price, "right")

    def worth(self, price: np.ndarray) -> np.ndarray:
        """(p,) ends of the steps that save more than this variance in a second."""
        dearer = self._ascending.size - np.searchsorted(self._ascending, price, "right")
        return np.searchsorted(self._key, self._pair + dearer)

    def within(self, seconds: np.ndarray) -> np.ndarray:
        """(p,) ends of the first steps that take these seconds at most."""
        ends = np.searchsorted(self.seconds, self.seconds[self.first] + seconds * (1 + 1e-12), "right") - 1
        return np.clip(ends, self.first, self.last)


class _Market:
    """Prices of a second of sending and of receiving of each rank, (E, 2P), and the choices of pairs at these prices.

    An assignment is described by the ``ends`` (p,) of the steps that are taken of each ladder.
    """

    def __init__(self, groups: _Groups, aim: Aim, total: Total) -> None:
        self._groups, self._ladders, self._total = groups, _Ladders(groups), total
        numbers, pair_of = groups.pairs
        ranks = groups.num_ranks
        self._exchange, self._sender, self._receiver = numbers // ranks**2, numbers // ranks % ranks, numbers % ranks
        self._least = np.bincount(pair_of, CHOICES[0] * groups.seconds_per_bit, numbers.size)
        ends = [quantization_variance(groups.beta, np.array(bits)) for bits in (CHOICES[0], CHOICES[-1])]
        sums = np.stack([np.bincount(groups.exchange, each, groups.num_exchanges) for each in (*ends, groups.beta)])
        self._most_variance, least_variance, self._beta = total(sums)
        self._scale(aim, self._most_variance - least_variance)

    def _scale(self, aim: Aim, variance_range: np.ndarray) -> None:
        """Set the factors of both terms of the objective, (E,), which are 0 for a term that cannot change; and Z0."""
        groups = self._groups
        self._least_seconds, most, now = (
            (
                self._total(
                    self._own_loads(np.bincount(groups.pairs[1], bits * groups.seconds_per_bit, self._least.size))
                )
                + groups.fixed
            ).max(axis=1)
            for bits in (np.full(groups.beta.size, CHOICES[0]), np.full(groups.beta.size, CHOICES[-1]), groups.bits_now)
        )
        unit, least = most - self._least_seconds, self._least_seconds.sum()
        can_change = unit > 0
        if aim.epoch_seconds is not None and least > 0:
            unit = (max(aim.epoch_seconds - now.sum(), 0.0) + least) * self._least_seconds / least
        self._variance, self._seconds = (
            np.where(valid, part / np.where(valid, span, 1.0), 0.0)
            for part, span, valid in (
                (aim.weight, variance_range, variance_range > 0),
                (1 - aim.weight, unit, can_change & (unit > 0)),
            )
        )

    def _own_loads(self, seconds: np.ndarray) -> np.ndarray:
        shape = self._groups.num_exchanges, 2 * self._groups.num_ranks
        start = self._exchange * shape[1]
        places = np.concatenate((start + self._sender, start + self._groups.num_ranks + self._receiver))
        return np.bincount(places, np.tile(seconds, 2), shape[0] * shape[1]).reshape(shape)

    def _taken(self, ends: np.ndarray) -> np.ndarray:
        """(p,) seconds of the steps before ``ends``."""
        return self._ladders.seconds[ends] - self._ladders.seconds[self._ladders.first]

    def _costs(self, *candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, E) variances and (n, E, 2P) loads of n candidates. Collective if ``total`` is."""
        saved, first = self._ladders.saved, self._ladders.first
        exchanges = self._groups.num_exchanges
        own = [
            np.column_stack((
                np.bincount(self._exchange, saved[ends] - saved[first], exchanges),
                self._own_loads(self._least + self._taken(ends)),
            ))
            for ends in candidates
        ]  # fmt: skip
        sums = self._total(np.stack(own))
        return self._most_variance - sums[..., 0], sums[..., 1:] + self._groups.fixed

    def _objective(self, variance: np.ndarray, longest: np.ndarray | float) -> np.ndarray:
        return self._variance * variance + self._seconds * (longest - self._least_seconds)

    def search(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends (p,) of the best assignment, and a lower bound (E,) of all objectives. Collective if ``total`` is.

        Each round sets the bits that are best at the present prices. Their sum of costs is a bound. As a second candidate, each
        pair gets the seconds that it has used on average.
        """
        ladders, ranks, dear = self._ladders, self._groups.num_ranks, self._seconds[:, None]
        prices = np.repeat(dear / (2 * ranks), 2 * ranks, axis=1)
        best, objective = ladders.first, np.full(dear.size, np.inf)
        bound, average = np.full(dear.size, -np.inf), np.zeros(0)
        # If a term cannot change, the first prices are optimal for the other one.
        is_settled = (self._seconds == 0) | (self._variance == 0)
        weights = np.where(self._variance > 0, self._variance, 1.0)[self._exchange]
        for number in range(_ROUNDS):
            cut = prices[self._exchange, self._sender] + prices[self._exchange, ranks + self._receiver]
            chosen = ladders.worth(np.where(self._variance[self._exchange] > 0, cut / weights, np.inf))
            memory = min(_MEMORY, number / (number + 2))
            average = memory * (average if number else 0.0) + (1 - memory) * self._taken(chosen)
            candidates = chosen, ladders.within(average)
            variances, loads = self._costs(*candidates)
            for ends, found in zip(candidates, self._objective(variances, loads.max(axis=2)), strict=True):
                is_better = found < objective
                objective, best = np.minimum(found, objective), np.where(is_better[self._exchange], ends, best)
            bound = np.maximum(bound, self._objective(variances[0], 0.0) + (prices * loads[0]).sum(axis=1))
            if (is_settled | (objective - bound <= _GOOD_GAP * objective)).all():
                break
            longest = loads[0].max(axis=1, keepdims=True)
            prices = prices * (loads[0] / np.where(longest > 0, longest, 1.0)) ** _POWER
            sums = prices.sum(axis=1, keepdims=True)
            prices *= dear / np.where(sums > 0, sums, 1.0)
        return best, bound

    def filled(self, ends: np.ndarray) -> np.ndarray:
        """``ends`` (p,) with further steps that make no rank slower than the slowest one."""
        ladders, ranks = self._ladders, self._groups.num_ranks
        _, (loads,) = self._costs(ends)
        left, ends = loads.max(axis=1, keepdims=True) - loads, ends.copy()
        most = ladders.step_seconds.size - 1
        by_sender, by_receiver = (self._exchange * 2 * ranks + each for each in (self._sender, ranks + self._receiver))
        left = left.ravel()
        for _ in range(8 * ranks if ends.size and most >= 0 else 0):
            step = np.minimum(ends, most)
            fits = ladders.step_seconds[step] <= np.minimum(left[by_sender], left[by_receiver])
            fits &= (ends < ladders.last) & (ladders.step_saved[step] > 0)
            if not fits.any():
                break
            # of all pairs of a sender and of a receiver, the one that saves most goes first
            worth = np.empty(ends.size, np.int64)
            worth[np.argsort(np.where(fits, ladders.step_saved[step], -1.0), kind="stable")] = np.arange(ends.size)
            worth[~fits] = -1
            first = np.full(left.size, -1)
            for places in (by_sender, by_receiver):
                np.maximum.at(first, places, worth)
            goes = fits & (worth == first[by_sender]) & (worth == first[by_receiver])
            for places in (by_sender, by_receiver):
                left[places[goes]] -= ladders.step_seconds[step[goes]]
            ends[goes] += 1
        return ends

    def assignments(self, ends: np.ndarray, bound: np.ndarray) -> list[Assignment]:
        """The assignments that ``ends`` (p,) describe, by exchange. Collective if ``total`` is."""
        (variance,), (loads,) = self._costs(ends)
        longest = loads.max(axis=1)
        objective = self._objective(variance, longest)
        is_taken = np.zeros(self._ladders.group.size + 1, np.int64)
        np.add.at(is_taken, self._ladders.first, 1)
        np.add.at(is_taken, ends, -1)
        level = np.bincount(self._ladders.group, np.cumsum(is_taken)[:-1], self._groups.beta.size).astype(np.int64)
        bits = np.split(np.array(CHOICES, np.uint8)[level], np.cumsum(self._groups.sizes)[:-1])
        numbers = zip(
            objective, np.minimum(bound, objective), longest, self._least_seconds, variance, self._beta, strict=True
        )
        return [Assignment(own, *map(float, of_one)) for own, of_one in zip(bits, numbers, strict=True)]
