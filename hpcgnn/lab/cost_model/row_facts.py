"""Facts about the rows of a plan that policies use: in-degrees (Sylvie's importance) and weights (AdaQP's assignment).

If there are many ranks, the parts of an evenly spread sample are read, so the facts are estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.plan import AggregationPlan
from hpcgnn.policy import sylvie
from hpcgnn.policy.adaqp import group_rows
from hpcgnn.policy.assignment import CHOICES, quantization_variance

MOST_RANKS = 64

Shares = dict[int, float]


@dataclass(frozen=True, eq=False)
class RowFacts:
    """degrees: (rows,) int64 in-degrees of what rows stand for. weights: for each direction and rank that was looked at, (rows,)
    peers, ascending, and (rows,) sums of the squared weights with which a row is added. looked_at: so many of ``ranks``."""

    degrees: np.ndarray
    weights: tuple[list[tuple[np.ndarray, np.ndarray]], ...]
    looked_at: int
    ranks: int

    @property
    def in_words(self) -> str:
        """The sample of ranks, in words."""
        return "all rows" if self.looked_at == self.ranks else f"the rows of {self.looked_at} of {self.ranks:,} ranks"

    def by_importance(self, base: int) -> Shares:
        """The share of rows with each bit-width that Sylvie chooses for given base bits."""
        bits = sylvie.class_bits(sylvie.importance(self.degrees, np.unique(self.degrees)), base)
        return _shares(sylvie.CHOICES, bits, np.ones(bits.size))

    def by_variance(self, weight: float, group_rows_of: int) -> Shares:
        """The share of rows with each bit-width that AdaQP chooses if the ranges of all rows are alike and no rank is a
        straggler. weight: of variance against time."""
        rows, bits = zip(*(_assigned(each, weight, group_rows_of, self.ranks) for each in self.weights), strict=True)
        return _shares(CHOICES, np.concatenate(bits), np.concatenate(rows))


def _assigned(
    weights: Sequence[tuple[np.ndarray, np.ndarray]], weight: float, size: int, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and bit-widths of each group of one direction. Without the maximum over ranks, Eq. 12 separates into groups."""
    grouped = [group_rows(beta, peer, np.ones(ranks), size, np.zeros(2 * ranks)) for peer, beta in weights]
    beta, rows = (
        np.concatenate(list(each)) if grouped else np.zeros(0)
        for each in ((problem.beta for _, problem in grouped), (np.bincount(of_row) for of_row, _ in grouped))
    )
    choices = np.array(CHOICES)
    variances, seconds = quantization_variance(beta[:, None], choices), rows[:, None] * choices
    spans = (each[:, 0].sum() - each[:, -1].sum() for each in (variances, seconds))
    of_variance, of_time = (
        share / abs(span) if span else 0.0 for share, span in zip((weight, 1 - weight), spans, strict=True)
    )
    costs = of_variance * variances + of_time * seconds
    return rows, choices[costs.argmin(axis=1)]


def _shares(choices: Sequence[int], bits: np.ndarray, rows: np.ndarray) -> Shares:
    counts = {each: float(rows[bits == each].sum()) for each in choices}
    total = sum(counts.values())
    return {each: count / total for each, count in counts.items() if count} if total else {max(choices): 1.0}


def read_facts(file: PartsFile, strategy: str, aggregation: str) -> RowFacts:
    """The facts of an open parts file with the plan of ``strategy``. aggregation: ``mean``, ``gcn`` or ``sum``."""
    plan, ranks = StoredPlan(file, strategy), file.num_parts
    chosen = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_RANKS)).astype(int)).tolist()
    degrees: list[np.ndarray] = []
    weights: tuple[list[Any], list[Any]] = ([], [])
    for rank in chosen:
        of_nodes = np.diff(file.edges(*file.part(rank), rank)[0])
        part = plan.part(rank, edges=False)
        degrees += _degrees(part, of_nodes)
        for direction, found in zip(weights, _weights(part, of_nodes, aggregation), strict=True):
            direction.append(found)
    return RowFacts(np.concatenate(degrees), weights, len(chosen), ranks)


def _degrees(part: AggregationPlan[Any], of_nodes: np.ndarray) -> Iterator[np.ndarray]:
    """In-degrees of the sources of *post* rows that a rank sends, and of the destinations of *pre* rows that it receives."""
    send, receive = part.send, part.receive
    yield of_nodes[send.indices[send.indptr[:-1]]][part.send_to.is_post()]
    destination = np.zeros(receive.num_cols, np.int64)
    destination[receive.indices] = np.repeat(np.arange(of_nodes.size), np.diff(receive.indptr))
    yield of_nodes[destination][~part.receive_from.is_post()]


def _weights(
    part: AggregationPlan[Any], of_nodes: np.ndarray, aggregation: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Peers and squared weights of the rows that a rank receives, in the forward and in the backward direction."""
    left, right = _diagonals(of_nodes, aggregation)
    send, receive = part.send, part.receive
    of_entries = np.repeat(left**2, np.diff(receive.indptr))
    forward = np.bincount(receive.indices, of_entries, receive.num_cols)
    back = np.add.reduceat(right[send.indices] ** 2, send.indptr[:-1]) if send.indices.size else np.zeros(0)
    for peers, squares in ((part.receive_from, forward), (part.send_to, back)):
        yield np.repeat(peers.peers, peers.rows), squares


def _diagonals(degrees: np.ndarray, aggregation: str) -> tuple[np.ndarray, np.ndarray]:
    """The factors of nodes' rows after and before the sum, as ``make_aggregator`` has them."""
    ones = np.ones(degrees.size)
    if aggregation == "mean":
        return 1 / np.maximum(degrees, 1), ones
    if aggregation == "gcn":
        both = (degrees + 1.0) ** -0.5
        return both, both
    return ones, ones
