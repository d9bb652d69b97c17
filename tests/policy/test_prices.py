"""Eq. 12's assignment by prices alone, as for problems that are too large for HiGHS."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.thread_world import ThreadWorld, on_threads
from hpcgnn.policy.prices import by_prices
from hpcgnn.policy.problem import Assignment, Groups, Problem, scales

RANKS, GROUPS = 4, 300


def test_the_best_assignment_of_all_rounds_is_near_the_bound() -> None:
    rng = np.random.default_rng(3)
    everyones = [
        Groups(
            (rank + rng.integers(1, RANKS, GROUPS)) % RANKS, rng.lognormal(0, 2, GROUPS), rng.uniform(0.5, 3, GROUPS)
        )
        for rank in range(RANKS)
    ]

    def program(world: ThreadWorld) -> Assignment:
        groups, fixed = everyones[world.rank], np.full(2 * RANKS, 50.0)
        return by_prices(world, [(Problem(groups, fixed), scales(world, groups, fixed, 0.5))])[0]

    for found in on_threads(RANKS, program):
        assert 0 <= found.gap < 0.01
