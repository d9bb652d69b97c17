"""Bit-widths for groups of rows: the bi-objective problem of AdaQP's Eq. 12, for one exchange over all ranks.

A group g of rows that one rank sends to another costs ``seconds_per_bit[g] * bits`` on the wire and adds the variance
``beta[g] / (2**bits - 1)**2`` to gradients. The objective, which is minimised, is

    weight * (sum of variances) / V  +  (1 - weight) * (Z - Z0) / T,

where Z is an upper bound of the seconds of every rank's sending and of every rank's receiving (the paper's rounds of a ring do
not exist with alltoallv). V and T are the ranges of both terms between all groups with the fewest bits and all with the most,
so a weight means the same for any graph, width and network. Z0 is Z with the fewest bits. It does not change the optimum, but
without it the objective would contain time that no bit-width can save, and any gap would look small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.world import World

CHOICES = (2, 4, 8)


class NoAssignment(Exception):
    """Raised on all ranks if there is no assignment."""


@dataclass(frozen=True)
class Groups:
    """Groups of rows that this rank sends: (G,) each.

    receiver: int64 receiving rank. beta: float64 sum of Eq. 11's beta over the rows. seconds_per_bit: float64 seconds on the wire
    that one more bit of each value adds.
    """

    receiver: np.ndarray
    beta: np.ndarray
    seconds_per_bit: np.ndarray


@dataclass(frozen=True)
class Problem:
    """The problem of one exchange.

    fixed: (2P,) this rank's share of the seconds that each rank sends and receives independently of bit-widths; shares are summed
    over ranks.
    """

    groups: Groups
    fixed: np.ndarray


@dataclass(frozen=True)
class Assignment:
    """An assignment of bit-widths.

    bits: (G,) int64 bit-widths of this rank's groups. objective: value of Eq. 12. bound: a lower bound of the objective of every
    assignment. seconds: Z. variance: the sum over the groups of all ranks.
    """

    bits: np.ndarray
    objective: float
    bound: float
    seconds: float
    variance: float

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


def loads(world: World, groups: Groups, bits: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, float]:
    """(2P,) seconds that each rank sends and receives, and the variance on all ranks. Collective.

    fixed: (2P,) this rank's share of the seconds that do not depend on bit-widths.
    """
    mine = own_loads(world, groups.receiver, groups.seconds_per_bit * bits) + fixed
    total = world.allreduce(
        np.append(mine, quantization_variance(groups.beta, bits).sum()), what="loads of an assignment"
    )
    return total[:-1], float(total[-1])


def own_loads(world: World, receiver: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """(2P,) seconds of sending and receiving of each rank, from (n,) receivers and this rank's seconds of sending to each."""
    mine = np.zeros(2 * world.size)
    mine[world.rank] = seconds.sum()
    mine[world.size :] = np.bincount(receiver, seconds, world.size)
    return mine


def scales(world: World, groups: Groups, fixed: np.ndarray, weight: float) -> Scales:
    """The scales, from all groups with the fewest and with the most bits; 0 for a term that cannot change. Collective."""
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
    """The assignment ``bits`` with its costs. bound: None if it is the optimum. Collective."""
    seconds, variance = loads(world, groups, bits, fixed)
    longest = float(seconds.max())
    objective = by.objective(variance, longest)
    return Assignment(bits, objective, objective if bound is None else min(bound, objective), longest, variance)
