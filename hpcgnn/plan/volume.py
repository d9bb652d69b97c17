"""Numbers of rows and bytes that a plan sends, per pair of ranks and in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PairRows:
    """Numbers of rows of every ordered pair of ranks that exchanges any; each array is (pairs,) int64."""

    sender: np.ndarray
    receiver: np.ndarray
    post: np.ndarray
    pre: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """(pairs,) rows of both kinds."""
        return self.post + self.pre


def describe(pairs: PairRows, num_parts: int, bytes_per_row: int) -> dict[str, Any]:
    """Totals and maxima of rows and bytes of one aggregation in one direction, as ``hpcgnn plan --json`` prints them."""
    sent = np.bincount(pairs.sender, weights=pairs.rows, minlength=num_parts).astype(np.int64)
    received = np.bincount(pairs.receiver, weights=pairs.rows, minlength=num_parts).astype(np.int64)
    return {
        "pairs": int(pairs.rows.size),
        "rows": int(pairs.rows.sum()),
        "post_rows": int(pairs.post.sum()),
        "pre_rows": int(pairs.pre.sum()),
        "bytes": int(pairs.rows.sum()) * bytes_per_row,
        "max_rows_sent": int(sent.max(initial=0)),
        "max_rows_received": int(received.max(initial=0)),
        "max_rows_pair": int(pairs.rows.max(initial=0)),
    }
