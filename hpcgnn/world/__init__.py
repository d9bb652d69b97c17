"""Ranks, what they agree on, and the transport of bytes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.world.agreement import raise_on_all_ranks, same_everywhere
    from hpcgnn.world.buffer import Buffer
    from hpcgnn.world.mpi_world import MpiWorld, whole_job
    from hpcgnn.world.segments import Segments
    from hpcgnn.world.startup import check_alike
    from hpcgnn.world.world import World

__all__ = [
    "Buffer",
    "MpiWorld",
    "Segments",
    "World",
    "check_alike",
    "raise_on_all_ranks",
    "same_everywhere",
    "whole_job",
]

# The ranks of `hpcgnn partition` do not need torch, which some of these modules do, and save the memory of importing it.
__getattr__ = attributes(
    __name__,
    {
        "Buffer": "hpcgnn.world.buffer",
        "MpiWorld": "hpcgnn.world.mpi_world",
        "Segments": "hpcgnn.world.segments",
        "World": "hpcgnn.world.world",
        "check_alike": "hpcgnn.world.startup",
        "raise_on_all_ranks": "hpcgnn.world.agreement",
        "same_everywhere": "hpcgnn.world.agreement",
        "whole_job": "hpcgnn.world.mpi_world",
    },
)
