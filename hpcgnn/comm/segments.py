"""Arguments of an exchange of rows: memory with a segment for each rank, and the graph of ranks that have rows for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm.buffer import Buffer


@dataclass(frozen=True)
class Neighbours:
    """The ranks that exchange rows with this one. handle: private to the world that made it. sources, destinations: (k,) ranks
    that send rows to this rank, and that receive rows from it."""

    handle: Any
    sources: np.ndarray
    destinations: np.ndarray


@dataclass(frozen=True, eq=False)
class Segments:
    """A buffer with the rows for, or from, each rank. counts: (size,) int64 number of rows of each rank. starts: (size,) int64
    row at which each rank's segment begins; None: the segments are contiguous, in rank order."""

    buffer: Buffer
    counts: np.ndarray
    starts: np.ndarray | None = None

    def begins(self) -> np.ndarray:
        """(size,) int64 :attr:`starts`, or their values for contiguous segments."""
        return np.cumsum(self.counts) - self.counts if self.starts is None else self.starts
