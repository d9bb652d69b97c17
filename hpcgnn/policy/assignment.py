"""Bits for groups of rows: the one entry to both ways of solving :mod:`hpcgnn.policy.problem`."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm import World
from hpcgnn.policy.exact import exact
from hpcgnn.policy.prices import by_prices
from hpcgnn.policy.problem import Assignment, NoAssignment, Problem, scales

# Up to so many groups on all ranks together, the problem is solved exactly, by rank 0 for all.
_EXACT_GROUPS = 64


def assign(world: World, problems: list[Problem], weight: float) -> list[Assignment]:
    """Bits for all ``problems``: the best ones on small ones, else ones that are near it by a known bound. Collective.

    weight: lambda, 0 for the fewest seconds and 1 for the least variance.

    Raises:
        NoAssignment: on every rank, where there is none.
    """
    groups = [problem.groups for problem in problems]
    wrong = [not (np.isfinite(each.beta).all() and np.isfinite(each.seconds_per_bit).all()) for each in groups]
    sizes = world.allreduce(np.array([[each.beta.size for each in groups], wrong]), what="the size of an assignment")
    if sizes[1].any():
        raise NoAssignment("the ranges of some rows, or the costs of some links, are no finite numbers")
    scaled = [(problem, scales(world, problem.groups, problem.fixed, weight)) for problem in problems]
    large = iter(by_prices(world, [each for each, size in zip(scaled, sizes[0], strict=True) if size > _EXACT_GROUPS]))
    return [
        next(large) if size > _EXACT_GROUPS else exact(world, *each)
        for each, size in zip(scaled, sizes[0], strict=True)
    ]
