"""Bit-widths for groups of rows: the bi-objective problem of AdaQP's Eq. 12, for one exchange over all ranks, and its solvers.

A group g of rows that one rank sends to another costs ``seconds_per_bit[g] * bits`` on the wire and adds the variance
``beta[g] / (2**bits - 1)**2`` to gradients. The objective, which is minimised, is

    weight * (sum of variances) / V  +  (1 - weight) * (Z - Z0) / T,

where Z is an upper bound of the seconds of every rank's sending and of every rank's receiving (the paper's rounds of a ring do
not exist with alltoallv), V and T are the ranges of both terms, and Z0 is Z with the fewest bits. Small problems are solved by
HiGHS (:func:`exact`), large ones by prices (:func:`by_prices`); docs/explanation/adaptive-bits.md explains both.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcgnn.world import World

CHOICES = (2, 4, 8)
# Up to this number of groups on all ranks together, rank 0 solves the problem exactly.
_EXACT_GROUPS = 64
# Up to this number, rank 0 tries to improve a solution by prices whose gap is large, because few groups do not divide evenly.
# HiGHS has no limit in seconds, because the same ranges must give the same bit-widths.
_REFINED_GROUPS, _REFINED_GAP, _LIMITS = 4096, 0.01, {"mip_rel_gap": 0.005, "node_limit": 50}
_ROUNDS = 400
_GOOD_GAP = 0.005
# The search ends with a gap that is almost good if it shrank by less than this share in this number of rounds.
_IDLE_ROUNDS, _NOTABLE = 50, 0.05
_MEMORY = 0.9  # of the average of pairs' seconds, from one round to the next


class NoAssignment(Exception):
    """Raised on all ranks if there is no assignment."""


@dataclass(frozen=True)
class Problem:
    """The problem of one exchange, with G groups of rows that this rank sends."""

    receiver: np.ndarray  # (G,) int64 receiving rank
    beta: np.ndarray  # (G,) float64 sum of Eq. 11's beta over the rows
    seconds_per_bit: np.ndarray  # (G,) float64 seconds on the wire that one more bit of each value adds
    fixed: np.ndarray  # (2P,) this rank's share of each rank's seconds to send and receive at any bit-width


@dataclass(frozen=True)
class Assignment:
    """An assignment of bit-widths."""

    bits: np.ndarray  # (G,) int64 bit-widths of this rank's groups
    objective: float  # value of Eq. 12
    bound: float  # a lower bound of the objective of every assignment
    seconds: float  # Z
    variance: float  # the sum over the groups of all ranks

    @property
    def gap(self) -> float:
        """An upper bound of the relative difference between the objective and the optimum."""
        return 0.0 if self.objective <= 0 else max(0.0, (self.objective - self.bound) / self.objective)


@dataclass(frozen=True)
class Scales:
    """The factors of the two objectives, and Z0."""

    variance: float
    seconds: float
    least_seconds: float = 0.0

    def objective(self, variance: float, seconds: float) -> float:
        """The objective of Eq. 12 for a sum of variances and Z."""
        return self.variance * variance + self.seconds * (seconds - self.least_seconds)


def quantization_variance(beta: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The variance of groups with the bit-widths ``bits``."""
    return beta / (2.0**bits - 1) ** 2


def own_loads(world: World, receiver: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """(2P,) seconds of sending and receiving of each rank, from (n,) receivers and this rank's seconds of sending to each."""
    mine = np.zeros(2 * world.size)
    mine[world.rank] = seconds.sum()
    mine[world.size :] = np.bincount(receiver, seconds, world.size)
    return mine


def _loads(world: World, problem: Problem, bits: np.ndarray) -> tuple[np.ndarray, float]:
    """(2P,) seconds that each rank sends and receives, and the variance on all ranks. Collective."""
    mine = own_loads(world, problem.receiver, problem.seconds_per_bit * bits) + problem.fixed
    variance = quantization_variance(problem.beta, bits).sum()
    total = world.allreduce(np.append(mine, variance), what="loads of an assignment")
    return total[:-1], float(total[-1])


def scales(world: World, problem: Problem, weight: float) -> Scales:
    """The scales, from all groups with the fewest and with the most bits; 0 for a term that cannot change. Collective."""
    ends = [_loads(world, problem, np.full(problem.beta.size, bits)) for bits in (CHOICES[0], CHOICES[-1])]
    (slim, most_variance), (wide, least_variance) = ends
    spans = most_variance - least_variance, float(wide.max() - slim.max())
    parts = zip((weight, 1 - weight), spans, strict=True)
    variance, seconds = (part / span if span > 0 else 0.0 for part, span in parts)
    return Scales(variance, seconds, float(slim.max()))


def _evaluated(world: World, problem: Problem, bits: np.ndarray, by: Scales, bound: float | None) -> Assignment:
    """The assignment ``bits`` with its costs. bound: None stands for its objective. Collective."""
    seconds, variance = _loads(world, problem, bits)
    longest = float(seconds.max())
    objective = by.objective(variance, longest)
    return Assignment(bits, objective, objective if bound is None else min(bound, objective), longest, variance)


def assign(world: World, problems: list[Problem], weight: float) -> list[Assignment]:
    """Bit-widths for all ``problems``: optimal ones for small problems, else ones with a known gap to the optimum. Collective.

    weight: lambda; 0 minimises the seconds, 1 the variance.

    Raises:
        NoAssignment: on every rank, if there is none.
    """
    wrong = [not (np.isfinite(each.beta).all() and np.isfinite(each.seconds_per_bit).all()) for each in problems]
    sizes = world.allreduce(np.array([[each.beta.size for each in problems], wrong]), what="the size of an assignment")
    if sizes[1].any():
        raise NoAssignment("the ranges of some rows, or the costs of some links, are not finite numbers")
    scaled = [(problem, scales(world, problem, weight)) for problem in problems]
    is_large = [size > _EXACT_GROUPS for size in sizes[0]]
    by_price = iter(by_prices(world, [each for each, large in zip(scaled, is_large, strict=True) if large]))
    return [
        _refined(world, *each, next(by_price), size) if large else exact(world, *each)
        for each, large, size in zip(scaled, is_large, sizes[0], strict=True)
    ]


def _refined(world: World, problem: Problem, by: Scales, found: Assignment, size: float) -> Assignment:
    """``found``, or HiGHS' assignment if it is better, with the better of both bounds. Collective."""
    if found.gap <= _REFINED_GAP or size > _REFINED_GROUPS:
        return found
    try:
        other = exact(world, problem, by, _LIMITS)
    except NoAssignment:  # none within these limits, on all ranks alike
        return found
    best = min(found, other, key=lambda each: each.objective)
    return replace(best, bound=min(max(found.bound, other.bound), best.objective))


# -- the exact solution ------------------------------------------------------------------------------------------------


def exact(world: World, problem: Problem, by: Scales, limits: dict[str, float] | None = None) -> Assignment:
    """The optimum, computed by HiGHS on rank 0. Every rank holds the whole problem, O(all groups) memory. Collective.

    limits: options of :func:`scipy.optimize.milp`, with which the result is an assignment with HiGHS' bound.

    Raises:
        NoAssignment: on every rank, if HiGHS finds none.
    """
    counts = world.allgather(np.array([problem.beta.size]))[:, 0]
    columns = np.stack([problem.receiver.astype(np.float64), problem.beta, problem.seconds_per_bit], axis=1)
    everyones = world.allgather(np.pad(columns, ((0, int(counts.max()) - counts[world.rank]), (0, 0))))
    sender = np.repeat(np.arange(world.size), counts)
    rows = np.concatenate([rows[:count] for rows, count in zip(everyones, counts, strict=True)])
    receiver, beta, seconds_per_bit = rows.T
    costs = beta, seconds_per_bit, world.allreduce(problem.fixed)
    found: tuple[np.ndarray, float] | str = ""
    if world.rank == 0:  # alone: there may be several optima, and hosts with different solvers
        try:
            found = _solve(sender, receiver.astype(np.int64), *costs, by, limits)
        except ValueError as error:
            found = str(error)
    answer = world.broadcast(found, what="an assignment of bits")
    if isinstance(answer, str):
        raise NoAssignment(answer)
    index, bound = answer
    first = int(counts[: world.rank].sum())
    bits = np.array(CHOICES)[index][first : first + problem.beta.size]
    return _evaluated(world, problem, bits, by, None if limits is None else bound)


def _solve(
    sender: np.ndarray,
    receiver: np.ndarray,
    beta: np.ndarray,
    seconds_per_bit: np.ndarray,
    fixed: np.ndarray,
    by: Scales,
    limits: dict[str, float] | None = None,
) -> tuple[np.ndarray, float]:
    """(groups,) indices into CHOICES, and a bound of the objective. The variables are binaries x[g, b] and Z.

    Seconds are scaled like the objective, because the solver's tolerances are absolute and a bit may cost a nanosecond.
    """
    from scipy import optimize, sparse  # here, as only rank 0 solves, and the modules take tens of megabytes

    num_groups, num_ranks, choices = beta.size, fixed.size // 2, np.array(CHOICES)
    variances = by.variance * quantization_variance(beta[:, None], choices)
    cost = np.append(variances.ravel(), 1.0)
    rows = np.arange(num_groups).repeat(choices.size)
    entries = np.arange(num_groups * choices.size)
    ones = np.ones(entries.size)
    one_each = sparse.csr_array((ones, (rows, entries)), (num_groups, cost.size))
    seconds = by.seconds * (seconds_per_bit[:, None] * choices).ravel()
    fixed = by.seconds * (fixed - by.least_seconds)
    z = np.arange(2 * num_ranks)
    values = np.concatenate([seconds, seconds, -np.ones(z.size)])
    places = (
        np.concatenate([sender[rows], num_ranks + receiver[rows], z]),
        np.concatenate([entries, entries, np.full(z.size, cost.size - 1)]),
    )
    within = sparse.csr_array((values, places), (z.size, cost.size))
    with _quiet_stdout():
        found = optimize.milp(
            cost,
            integrality=np.append(ones, 0),
            bounds=optimize.Bounds(np.append(0 * ones, -np.inf), np.append(ones, np.inf)),
            constraints=[optimize.LinearConstraint(one_each, 1, 1), optimize.LinearConstraint(within, -np.inf, -fixed)],
            options={"mip_rel_gap": 0.0} if limits is None else limits,
        )
    if found.x is None:
        raise ValueError(f"HiGHS did not find an assignment: {found.message}")
    bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound  # None where there is no integer at all
    return found.x[:-1].reshape(num_groups, choices.size).argmax(1), float(bound)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Hide the debugging output of HiGHS on stdout, which would be in the middle of a command's JSON."""
    sys.stdout.flush()
    own, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)
        os.close(nowhere)


# -- prices ------------------------------------------------------------------------------------------------------------


class _Ladder(NamedTuple):
    """The S steps from the fewest bits upwards for the groups of one pair of ranks, best first."""

    receiver: int
    least_seconds: float  # of the fewest bits
    group: np.ndarray  # (S,) int64
    price: np.ndarray  # (S,) float64 descending, the scaled variance that a second saves
    seconds: np.ndarray  # (S + 1,) sums over the first steps
    saved: np.ndarray  # (S + 1,) scaled variance, likewise


def _ladders(problem: Problem, by: Scales) -> list[_Ladder]:
    """A ladder for each rank to which this rank sends."""
    choices = np.array(CHOICES)
    saved = -np.diff(by.variance * quantization_variance(problem.beta[:, None], choices), axis=1).T  # (steps, G)
    seconds = problem.seconds_per_bit * np.diff(choices)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(seconds > 0, saved / seconds, np.inf)
    group = np.broadcast_to(np.arange(problem.beta.size), saved.shape)
    found = []
    for receiver in np.unique(problem.receiver):
        own = problem.receiver == receiver
        columns = [array[:, own].ravel() for array in (group, price, seconds, saved)]
        order = np.argsort(-columns[1], kind="stable")  # a group's first step is worth more than its second
        own_group, own_price, own_seconds, own_saved = (column[order] for column in columns)
        sums = (np.concatenate([[0.0], np.cumsum(column)]) for column in (own_seconds, own_saved))
        least_seconds = CHOICES[0] * problem.seconds_per_bit[own].sum()
        found.append(_Ladder(int(receiver), least_seconds, own_group, own_price, *sums))
    return found


def by_prices(world: World, problems: list[tuple[Problem, Scales]]) -> list[Assignment]:
    """Assignments with a known gap to the optimum. All problems share each round of the search for prices. Collective."""
    if not problems:
        return []
    fixed = world.allreduce(np.array([problem.fixed for problem, _ in problems]))
    markets = [_Market(world, problem, own, by) for (problem, by), own in zip(problems, fixed, strict=True)]
    for _ in range(_ROUNDS):
        if not (open_ := [market for market in markets if not market.is_closed]):
            break
        offers = np.concatenate([market.offer() for market in open_])
        sums = np.split(world.allreduce(offers, what="assignments of bits"), len(open_))
        for market, total in zip(open_, sums, strict=True):
            market.take(total)
    return [
        _evaluated(world, problem, market.bits(), by, market.bound if market.bound > -np.inf else None)
        for (problem, by), market in zip(problems, markets, strict=True)
    ]


class _Market:
    """Prices, which are the same on every rank, and the choices of this rank's pairs at these prices. fixed: of all ranks."""

    def __init__(self, world: World, problem: Problem, fixed: np.ndarray, by: Scales) -> None:
        self.world, self.problem, self.fixed, self.by = world, problem, fixed, by
        self.ladders = _ladders(problem, by)
        self.receivers = np.array([ladder.receiver for ladder in self.ladders], np.int64)
        self.least_seconds = np.array([ladder.least_seconds for ladder in self.ladders])
        self.least_bits_cost = by.variance * float(quantization_variance(problem.beta, np.array(CHOICES[0])).sum())
        self.prices = np.full(2 * world.size, by.seconds / (2 * world.size))
        self.average: np.ndarray | None = None
        self.candidates: list[list[int]] = []
        self.bound, self.objective = -np.inf, np.inf
        self._gap, self._idle = np.inf, 0
        # If one of the objectives cannot change, this start is optimal for the other one, and no search is needed.
        self.is_settled = self.is_closed = by.seconds == 0 or by.variance == 0
        self.best = [len(ladder.group) if by.seconds == 0 else 0 for ladder in self.ladders]

    def offer(self) -> np.ndarray:
        """(4 + 4P,) numbers that are summed over ranks for :meth:`take`: whether a rank is content, the costs of this rank's
        pairs at the present prices, and the scaled variances and the seconds of both candidates.
        """
        prices = self.prices[self.world.rank] + self.prices[self.world.size + self.receivers]
        chosen = [
            int(np.searchsorted(-ladder.price, -price)) for ladder, price in zip(self.ladders, prices, strict=True)
        ]
        taken = np.array([ladder.seconds[steps] for ladder, steps in zip(self.ladders, chosen, strict=True)])
        self.average = taken if self.average is None else _MEMORY * self.average + (1 - _MEMORY) * taken
        rounded = [
            int(np.searchsorted(ladder.seconds, most, side="right")) - 1
            for ladder, most in zip(self.ladders, self.average, strict=True)
        ]
        self.candidates = [chosen, rounded]
        (cost, loads), (other_cost, other_loads) = map(self._costs, self.candidates)
        return np.concatenate([[self.is_settled, cost + self.prices @ loads, cost, other_cost], loads, other_loads])

    def _costs(self, candidate: list[int]) -> tuple[float, np.ndarray]:
        """The scaled variance, and the (2P,) seconds of :func:`own_loads`, after so many steps of each ladder."""
        reached = list(zip(self.ladders, candidate, strict=True))
        seconds = self.least_seconds + np.array([ladder.seconds[steps] for ladder, steps in reached])
        saved = sum(ladder.saved[steps] for ladder, steps in reached)
        return self.least_bits_cost - float(saved), own_loads(self.world, self.receivers, seconds)

    def take(self, sums: np.ndarray) -> None:
        """Take the sums: keep the best bound and assignment, and move the prices or end, in the same round on all ranks."""
        (settled, value, *costs), loads = sums[:4].tolist(), sums[4:].reshape(2, -1) + self.fixed
        if settled:
            self.is_closed = True
            return
        for candidate, cost, seconds in zip(self.candidates, costs, loads, strict=True):
            objective = cost + self.by.objective(0.0, float(seconds.max()))
            if objective < self.objective:
                self.objective, self.best = objective, candidate
        value = float(value + self.prices @ self.fixed) + self.by.objective(0.0, 0.0)
        self.bound = max(self.bound, value)
        slope = loads[0] - loads[0].mean()
        steepest = np.abs(slope).max()
        gap = self.objective - self.bound
        self._idle = 0 if gap < (1 - _NOTABLE) * self._gap else self._idle + 1
        self._gap = gap if self._idle == 0 else self._gap
        is_idle = self._idle > _IDLE_ROUNDS and gap <= 2 * _GOOD_GAP * self.objective
        self.is_settled = gap <= _GOOD_GAP * self.objective or steepest == 0 or is_idle
        if not self.is_settled:
            step = (self.objective - value) / (self.by.seconds * steepest**2)
            self.prices = self.prices * np.exp(np.clip(step * slope, -2.0, 2.0))
            self.prices *= self.by.seconds / self.prices.sum()

    def bits(self) -> np.ndarray:
        """(G,) bit-widths of the best assignment so far."""
        level = np.zeros(self.problem.beta.size, np.int64)
        for ladder, steps in zip(self.ladders, self.best, strict=True):
            np.add.at(level, ladder.group[:steps], 1)
        return np.array(CHOICES)[level]
