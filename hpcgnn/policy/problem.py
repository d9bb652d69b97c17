"""Bits for groups of rows: the bi-objective problem of AdaQP's Eq. 12, for one exchange over all ranks.

A group g of rows that one rank sends to another costs ``seconds_per_bit[g] * bits`` on the wire and leaves the variance
``beta[g] / (2**bits - 1)**2`` in gradients. To minimise is

    weight * (sum of variances) / V  +  (1 - weight) * (Z - Z0) / T,

where Z bounds the seconds of every rank's sending and of every rank's receiving (the paper's rounds of a ring do not exist
under alltoallv). V and T are the spans of both between all groups at the fewest and all at the most bits, so that the weight
says the same for any graph, width and network. Z0, Z with the fewest bits, changes nothing about what is best; but an
objective that had it, and with it what no bits can save, would make any distance from the optimum look small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import World

CHOICES = (2, 4, 8)


class NoAssignment(Exception):
    """There is no assignment; raised by all ranks alike."""


@dataclass(frozen=True)
class Groups:
    """Groups of rows that this rank sends: (G,) each.

    receiver: int64, the rank that each is for. beta: float64, sum over its rows of Eq. 11's beta. seconds_per_bit: float64,
    what a bit of each of its values adds to the seconds on the wire.
    """

    receiver: np.ndarray
    beta: np.ndarray
    seconds_per_bit: np.ndarray


@dataclass(frozen=True)
class Problem:
    """Of one exchange. fixed: (2P,) seconds that each rank sends and receives whatever the bits, of which this rank knows a
    share; they are summed over ranks."""

    groups: Groups
    fixed: np.ndarray


@dataclass(frozen=True)
class Assignment:
    """bits: (G,) int64 of this rank's groups. objective: Eq. 12's value. bound: no assignment has a smaller one. seconds: Z.
    variance: the sum over all ranks' groups."""

    bits: np.ndarray
    objective: float
    bound: float
    seconds: float
    variance: float

    @property
    def gap(self) -> float:
        """How far from the optimum the objective may be, relative to it."""
        return 0.0 if self.objective <= 0 else max(0.0, (self.objective - self.bound) / self.objective)


@dataclass(frozen=True)
class Scales:
    """The factors of the two objectives, and Z0."""

    variance: float
    seconds: float
    least_seconds: float = 0.0

    def objective(self, variance: float, seconds: float) -> float:
        """Eq. 12 as it is minimised here, of a sum of variances and Z."""
        return self.variance * variance + self.seconds * (seconds - self.least_seconds)


def left_over(beta: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The variance of groups at ``bits``."""
    return beta / (2.0**bits - 1) ** 2


def loads(world: World, groups: Groups, bits: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, float]:
    """(2P,) seconds that each rank sends and receives, and the variance on all ranks. Collective.

    fixed: (2P,) seconds that do not depend on bits, of which this rank knows a share; they are summed over ranks.
    """
    mine = own_loads(world, groups.receiver, groups.seconds_per_bit * bits) + fixed
    total = world.allreduce(np.append(mine, left_over(groups.beta, bits).sum()), what="loads of an assignment")
    return total[:-1], float(total[-1])


def own_loads(world: World, receiver: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """(2P,) seconds of sending and of receiving of each rank, from (n,) receivers and the seconds that this one sends each."""
    mine = np.zeros(2 * world.size)
    mine[world.rank] = seconds.sum()
    mine[world.size :] = np.bincount(receiver, seconds, world.size)
    return mine


def scales(world: World, groups: Groups, fixed: np.ndarray, weight: float) -> Scales:
    """From all groups at the fewest and at the most bits; 0 for an objective that cannot change. Collective."""
    ends = [loads(world, groups, np.full(groups.beta.size, bits), fixed) for bits in (CHOICES[0], CHOICES[-1])]
    (slim, most_variance), (wide, least_variance) = ends
    spans = most_variance - least_variance, float(wide.max() - slim.max())
    variance, seconds = (
        part / span if span > 0 else 0.0 for part, span in zip((weight, 1 - weight), spans, strict=True)
    )
    return Scales(variance, seconds, float(slim.max()))


def evaluated(
    world: World, groups: Groups, bits: np.ndarray, fixed: np.ndarray, by: Scales, bound: float | None
) -> Assignment:
    """The assignment ``bits`` with what it costs; ``bound`` None: it is the optimum. Collective."""
    seconds, variance = loads(world, groups, bits, fixed)
    longest = float(seconds.max())
    objective = by.objective(variance, longest)
    return Assignment(bits, objective, objective if bound is None else min(bound, objective), longest, variance)
