"""Orders of a part's nodes in which aggregation finds more of the rows that it gathers in the caches, and a choice among them.

An order is a permutation made from the edges inside the part, in O(edges log edges) time and O(edges) memory:

none    the order of parts.h5, by original id
degree  nodes by the number of edges that leave them, most first: rows that are gathered most often are close together
rcm     reverse Cuthill-McKee: a breadth-first search from the node with the fewest neighbours, which visits neighbours with
        the fewest neighbours first; its order is reversed. Neighbours are close together
hubs    a breadth-first search from the node with the most neighbours, which visits neighbours with the most neighbours first:
        both neighbours and rows that are gathered often are close together
auto    the order that measures fastest: the products of an epoch, forward and transposed, are timed on a sample of rows
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.graph import METHODS, ORDERS
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
    """An order of one rank's n nodes. method: its name in METHODS, but never ``auto``. nodes: (n,) int64, new node k is node
    ``nodes[k]`` of the file; None is the file's order. seconds: of a measured choice, by method: the time of the forward and
    transposed products together."""

    method: str = "none"
    nodes: torch.Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def node_order(local: Csr, method: str, width: int) -> NodeOrder:
    """The order ``method``, one of METHODS, for aggregation over ``local`` (n, n) at ``width`` columns. Not collective. ``auto``
    takes some seconds, and meanwhile O(edges of the part + n * width) memory beside the candidates' orders. As it measures times,
    it may choose another order the next time."""
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
    """Median seconds of the forward and the transposed product of ``local`` (n, n), by method, in each order (n,), scaled
    from samples to all entries of ``local``. ``width``: columns of the features."""
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


def find_order(local: Csr, method: str) -> torch.Tensor:
    """(n,) int64 permutation of the nodes of ``local`` (n, n), whose rows are destinations: new node k is old node [k]. method:
    one of ORDERS. Equal nodes keep their old order, so that the result is the same every time."""
    if method == "degree":
        uses = torch.bincount(local.indices, minlength=local.num_cols)
        return torch.argsort(uses, descending=True, stable=True)
    order = _breadth_first(local, most_first=method == "hubs")
    return torch.from_numpy(order if method == "hubs" else order[::-1].copy())


def _breadth_first(local: Csr, *, most_first: bool) -> np.ndarray:
    """(n,) int64 breadth-first order, which takes starts and neighbours by their number of distinct neighbours; the matrix is
    sorted by it once. SciPy's reverse_cuthill_mckee sorts the d neighbours of each node by insertion instead, in d² steps."""
    import scipy.sparse as sp  # here, because it takes time and memory on each rank, and most runs do not ask for an order
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    ones = np.ones(local.num_entries, dtype=bool)  # SciPy can merge duplicates of bools without an overflow
    csr = (ones, index_array(local.indices), index_array(local.indptr))
    matrix = sp.csr_matrix(csr, shape=(local.num_rows, local.num_cols))
    matrix = sp.csr_matrix(matrix + matrix.T)
    neighbours = np.diff(matrix.indptr)
    by_number = np.argsort(-neighbours if most_first else neighbours, kind="stable")
    matrix = sp.csr_matrix(matrix[by_number][:, by_number])
    matrix.sort_indices()
    # One search, from one more node beside the first node of each component, meets the nodes of a component in their order.
    _, component = connected_components(matrix, directed=False)
    starts, (size, _) = np.unique(component, return_index=True)[1], matrix.shape
    entries = np.concatenate((matrix.indices, starts)), np.append(matrix.indptr, matrix.nnz + starts.size)
    joined = sp.csr_matrix((np.ones(entries[0].size), *entries), shape=(size + 1, size + 1))
    met = breadth_first_order(joined, size, return_predecessors=False)[1:]
    order: np.ndarray = by_number[met[np.argsort(component[met], kind="stable")]]
    return order
