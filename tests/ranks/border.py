"""Programs of ranks: read what may be damaged."""

from __future__ import annotations

from pathlib import Path

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.errors import HpcgnnError


def refused(
    world: World, paths: list[Path], strategy: str = "hybrid", any_ranks: bool = False
) -> tuple[str, bool] | None:
    """What rank r says of ``paths[r]`` (the last, where there are fewer) and of the plan there, and whether all ranks know."""
    try:
        graph = hpcgnn.load(paths[min(world.rank, len(paths) - 1)], world, any_ranks=any_ranks)
        graph.plan(strategy, weighted=True)
    except HpcgnnError as error:
        return str(error), error.agreed
    return None
