"""Ranks, what they agree on, and the transport of bytes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.lazy import attributes

if TYPE_CHECKING:
    from hpcgnn.world.buffer import Buffer, Segments
    from hpcgnn.world.mpi_world import MpiWorld, whole_job
    from hpcgnn.world.world import World, check_alike, raise_on_all_ranks, same_everywhere

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
__getattr__ = attributes(__name__)
