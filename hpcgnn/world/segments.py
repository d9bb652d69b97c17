"""Arguments of an exchange of rows: memory with a segment for each rank, and the graph of ranks that have rows for each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcgnn.world.buffer import Buffer


@dataclass(frozen=True)
class Neighbours:
    """The ranks that exchange rows with this one. handle: private to the world that made it. sources, destinations: (k,) ranks
    that send rows to this rank, and that receive rows from it."""

    handle: Any
    sources: np.ndarray
    destinations: np.ndarray


@dataclass(eq=False)
class Segments:
    """A buffer with the rows for, or from, each rank. counts: (size,) int64 number of rows of each rank. starts: (size,) int64
    row at which each rank's segment begins; None: the segments are contiguous, in rank order. for_mpi: the segments as the
    world that moves them has passed them to MPI before, among the ranks ``among`` or all ranks."""

    buffer: Buffer
    counts: np.ndarray
    starts: np.ndarray | None = None
    for_mpi: Any = None
    among: Neighbours | None = None

    @cached_property
    def begins(self) -> np.ndarray:
        """(size,) int64 :attr:`starts`, or their values for contiguous segments."""
        return np.cumsum(self.counts) - self.counts if self.starts is None else self.starts
