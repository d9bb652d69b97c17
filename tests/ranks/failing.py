"""Programs for ranks that fail, to test the reports of failures."""

from __future__ import annotations

import os

import numpy as np

from hpcgnn.world import World


def one_is_wrong(world: World, wrong: int) -> None:
    """One rank raises an error while the others wait for it."""
    numbers = {"found": world.rank, "wanted": 0}
    if world.rank == wrong:
        assert numbers["found"] == numbers["wanted"], "not what was wanted"
    world.allreduce(np.zeros(1))


def one_dies(world: World) -> int:
    """One rank exits without a message."""
    if world.rank == 1:
        os._exit(3)
    return int(world.allreduce(np.ones(1))[0])


def rank_squared(world: World) -> int:
    """A result that differs between ranks."""
    return world.rank**2
