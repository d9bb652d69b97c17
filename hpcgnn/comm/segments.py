"""What an exchange of rows is given: memory with a segment for each rank, and who has rows for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm.buffer import Buffer


@dataclass(frozen=True)
class Neighbours:
    """A graph of ranks that knows who sends to whom. handle: of the world that made it. sources, destinations: (k,) ranks that
    send to this one, and get from it."""

    handle: Any
    sources: np.ndarray
    destinations: np.ndarray


@dataclass(frozen=True, eq=False)
class Segments:
    """A buffer whose rows are those for, or from, one rank after the other. counts: (size,) int64 rows of each. starts: (size,)
    int64 row at which each begins; None: they lie one behind the other."""

    buffer: Buffer
    counts: np.ndarray
    starts: np.ndarray | None = None

    def begins(self) -> np.ndarray:
        """(size,) int64, :attr:`starts` or what they are by default."""
        return np.cumsum(self.counts) - self.counts if self.starts is None else self.starts
