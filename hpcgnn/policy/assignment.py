"""The assignment of bit-widths to groups of rows, by one of two solvers of :mod:`hpcgnn.policy.problem`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.policy.exact import Effort, exact
from hpcgnn.policy.prices import by_prices
from hpcgnn.policy.problem import Assignment, NoAssignment, Problem, Scales, scales
from hpcgnn.world import World

# Up to this number of groups on all ranks together, rank 0 solves the problem exactly.
_EXACT_GROUPS = 64
# Up to this number, rank 0 tries to improve a solution by prices whose gap is large, because few groups do not divide evenly.
_REFINED_GROUPS, _GOOD_GAP, _EFFORT = 4096, 0.01, Effort(gap=0.005, nodes=50)


def assign(world: World, problems: list[Problem], weight: float) -> list[Assignment]:
    """Bit-widths for all ``problems``: optimal ones for small problems, else ones with a known gap to the optimum. Collective.

    weight: lambda; 0 minimises the seconds, 1 the variance.

    Raises:
        NoAssignment: on every rank, if there is none.
    """
    groups = [problem.groups for problem in problems]
    wrong = [not (np.isfinite(each.beta).all() and np.isfinite(each.seconds_per_bit).all()) for each in groups]
    sizes = world.allreduce(np.array([[each.beta.size for each in groups], wrong]), what="the size of an assignment")
    if sizes[1].any():
        raise NoAssignment("the ranges of some rows, or the costs of some links, are not finite numbers")
    scaled = [(problem, scales(world, problem.groups, problem.fixed, weight)) for problem in problems]
    is_large = [size > _EXACT_GROUPS for size in sizes[0]]
    by_price = iter(by_prices(world, [each for each, large in zip(scaled, is_large, strict=True) if large]))
    return [
        _refined(world, *each, next(by_price), size) if large else exact(world, *each)
        for each, large, size in zip(scaled, is_large, sizes[0], strict=True)
    ]


def _refined(world: World, problem: Problem, by: Scales, found: Assignment, size: float) -> Assignment:
    """``found``, or HiGHS' assignment if it is better, with the better of both bounds. Collective."""
    if found.gap <= _GOOD_GAP or size > _REFINED_GROUPS:
        return found
    try:
        other = exact(world, problem, by, _EFFORT)
    except NoAssignment:  # none within this effort, on all ranks alike
        return found
    best = min(found, other, key=lambda each: each.objective)
    return replace(best, bound=min(max(found.bound, other.bound), best.objective))
