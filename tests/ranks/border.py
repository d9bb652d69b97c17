"""Programs for ranks: read files that may be damaged."""

from __future__ import annotations

from pathlib import Path

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import World


def refused(
    world: World, paths: list[Path], strategy: str = "hybrid", any_ranks: bool = False
) -> tuple[str, bool] | None:
    """The sentence of rank r about ``paths[r]`` (the last path for further ranks), the values of its edges or its plan, and if
    all ranks raised it."""
    try:
        graph = hpcgnn.load(paths[min(world.rank, len(paths) - 1)], world, any_ranks=any_ranks)
        _ = graph.edge_type, graph.edge_attr
        graph.plan(strategy, weighted=True)
    except HpcgnnError as error:
        return str(error), error.agreed
    return None
