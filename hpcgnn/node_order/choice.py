"""Choosing an order by measurement: the products of an epoch, forward and transposed, on a bounded sample of their rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.node_order.methods import METHODS, ORDERS
from hpcgnn.node_order.orders import find_order

# An order has to gain this much: less is within what measurements vary by, and it costs a copy of the features.
_LEAST_GAIN = 0.05
_ROUNDS = 5
# What one product may gather, in values: 1 GiB in float32. Windows all over the matrix, each long against the caches.
_SAMPLE_VALUES = 1 << 28
_WINDOWS = 8


@dataclass(frozen=True)
class NodeOrder:
    """An order of one rank's n nodes.

    method: which it is, never ``auto``. nodes: (n,) int64, new node k is node ``nodes[k]`` of the file; None is the file's
    order. seconds: for a measured choice, what each candidate took for the same number of entries, forward and transposed.
    """

    method: str = "none"
    nodes: torch.Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def node_order(local: Csr, method: str, width: int) -> NodeOrder:
    """The order ``method``, one of METHODS, for aggregation over ``local`` (n, n) at ``width`` columns. Not collective.

    ``auto`` takes seconds at most, and beside the candidates' orders O(edges of the part + n * width) memory for as long.
    Being timed, it may choose differently the next time.
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
    """The method with the fewest seconds, or ``none`` where that gains too little."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] <= (1 - _LEAST_GAIN) * seconds["none"] else "none"


def measure(local: Csr, orders: dict[str, torch.Tensor], width: int) -> dict[str, float]:
    """Median seconds of both products of ``local`` (n, n) in each order (n,), as for all of its entries."""
    both = (local.structure, local.structure.transpose())
    most = max(_SAMPLE_VALUES // width, 1)
    samples = {name: [_sample(matrix, nodes, most) for matrix in both] for name, nodes in orders.items()}
    # From the pool, as in training: with small pages, the order would matter more than it does there.
    x, out = (buffers.empty(local.num_rows, width, torch.float32) for _ in range(2))
    x.fill_(1)
    rounds: dict[str, list[float]] = {name: [] for name in orders}
    # By turns, so that a machine that is slow for a while is slow for all. The first round fills caches and compiles.
    for _ in range(1 + _ROUNDS):
        for name, matrices in samples.items():
            rounds[name].append(sum(_seconds_an_entry(matrix, x, out) for matrix in matrices) * local.num_entries)
    return {name: float(np.median(seconds[1:])) for name, seconds in rounds.items()}


def _seconds_an_entry(matrix: Csr, x: torch.Tensor, out: torch.Tensor) -> float:
    started = time.perf_counter()
    spmm(matrix, x, out=out[: matrix.num_rows], accumulate=False)
    return (time.perf_counter() - started) / matrix.num_entries


def _sample(matrix: Csr, nodes: torch.Tensor, most_entries: int) -> Csr:
    """Windows of the rows of ``matrix`` in the order ``nodes``, about ``most_entries`` in all, and never none."""
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
