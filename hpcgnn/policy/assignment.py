"""Bits for groups of rows: the one entry to both ways of solving :mod:`hpcgnn.policy.problem`."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm import World
from hpcgnn.policy.exact import exact
from hpcgnn.policy.prices import by_prices
from hpcgnn.policy.problem import Assignment, Groups, NoAssignment, scales

# Up to so many groups on all ranks together, the problem is solved exactly, by all ranks alike.
_EXACT_GROUPS = 64


def assign(world: World, groups: Groups, fixed: np.ndarray, weight: float) -> Assignment:
    """Bits for ``groups``: the best ones on small problems, else ones that are near it by a known bound. Collective.

    fixed: (2P,) seconds that each rank sends and receives whatever the bits, of which this rank knows a share; they are
    summed over ranks. weight: lambda, 0 for the fewest seconds and 1 for the least variance.

    Raises:
        NoAssignment: on every rank, where there is none.
    """
    wrong = not (np.isfinite(groups.beta).all() and np.isfinite(groups.seconds_per_bit).all())
    num_groups, ranks_wrong = world.allreduce(
        np.array([groups.beta.size, wrong]), what="the size of an assignment"
    ).tolist()
    if ranks_wrong:
        raise NoAssignment("the ranges of some rows, or the costs of some links, are no finite numbers")
    by = scales(world, groups, fixed, weight)
    return (exact if num_groups <= _EXACT_GROUPS else by_prices)(world, groups, fixed, by)
