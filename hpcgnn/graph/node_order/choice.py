"""Choice of an order by measurement: the products of an epoch, forward and transposed, are timed on a bounded sample of rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcgnn.graph.node_order.methods import METHODS, ORDERS
from hpcgnn.graph.node_order.orders import find_order
from hpcgnn.kernels import Csr, buffers, spmm

# The least share of seconds that an order must save: smaller differences are within the variation of measurements, and a new
# order costs a copy of the features.
_LEAST_GAIN = 0.05
_ROUNDS = 5
# The most values that one measured product gathers: 1 GiB in float32. They are in windows spread over the matrix, each of
# which gathers much more than the caches hold.
_SAMPLE_VALUES = 1 << 28
_WINDOWS = 8


@dataclass(frozen=True)
class NodeOrder:
    """An order of one rank's n nodes.

    method: its name in METHODS, but never ``auto``. nodes: (n,) int64, new node k is node ``nodes[k]`` of the file; None is
    the file's order. seconds: of a measured choice, by method: the time of the forward and transposed products together.
    """

    method: str = "none"
    nodes: torch.Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def node_order(local: Csr, method: str, width: int) -> NodeOrder:
    """The order ``method``, one of METHODS, for aggregation over ``local`` (n, n) at ``width`` columns. Not collective.

    ``auto`` takes some seconds, and meanwhile O(edges of the part + n * width) memory beside the candidates' orders. As it
    measures times, it may choose another order the next time.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method == "none" or (method == "auto" and local.num_entries == 0):
        return NodeOrder()
    if method != "auto":
        return NodeOrder(method, find_order(local, method))
    orders = {"none": torch.arange(local.num_rows)} | {name: find_order(local, name) for name in ORDERS}
    seconds = measure(local, orders, width)
    chosen = fastest(seconds)
    return NodeOrder(chosen, None if chosen == "none" else orders[chosen], seconds)


def fastest(seconds: dict[str, float]) -> str:
    """The method with the fewest seconds, or ``none`` where that saves less than 5 % of its seconds."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] <= (1 - _LEAST_GAIN) * seconds["none"] else "none"


def measure(local: Csr, orders: dict[str, torch.Tensor], width: int) -> dict[str, float]:
    """Median seconds of the forward and the transposed product of ``local`` (n, n), by method, in each order (n,).

    Seconds of samples are scaled to all entries of ``local``. ``width``: columns of the features.
    """
    both = (local.structure, local.structure.transpose())
    most = max(_SAMPLE_VALUES // width, 1)
    samples = {name: [_sample(matrix, nodes, most) for matrix in both] for name, nodes in orders.items()}
    # Memory is from the pool, as in training: in memory with small pages the order would matter more than it does there.
    x, out = (buffers.empty(local.num_rows, width, torch.float32) for _ in range(2))
    x.fill_(1)
    rounds: dict[str, list[float]] = {name: [] for name in orders}
    # Methods take turns, so that a slow phase of the machine affects all. The first round, which fills caches and compiles, is
    # not counted.
    for _ in range(1 + _ROUNDS):
        for name, matrices in samples.items():
            rounds[name].append(sum(_seconds_an_entry(matrix, x, out) for matrix in matrices) * local.num_entries)
    return {name: float(np.median(seconds[1:])) for name, seconds in rounds.items()}


def _seconds_an_entry(matrix: Csr, x: torch.Tensor, out: torch.Tensor) -> float:
    started = time.perf_counter()
    spmm(matrix, x, out=out[: matrix.num_rows], accumulate=False)
    return (time.perf_counter() - started) / matrix.num_entries


def _sample(matrix: Csr, nodes: torch.Tensor, most_entries: int) -> Csr:
    """Windows of rows of ``matrix`` in the order ``nodes``, with about ``most_entries`` entries in all and at least one row."""
    if matrix.num_entries <= most_entries:
        return matrix.in_order(nodes, nodes)
    ends = matrix.row_lengths()[nodes].cumsum(0)
    starts = torch.arange(_WINDOWS) * matrix.num_entries // _WINDOWS
    first = torch.searchsorted(ends, starts, right=True)
    last = torch.searchsorted(ends, starts + max(most_entries // _WINDOWS, 1)) + 1
    taken = torch.zeros(nodes.numel(), dtype=torch.bool)
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        taken[begin:end] = True
    return matrix.in_order(nodes[taken], nodes)
