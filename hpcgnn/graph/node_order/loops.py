"""The inner loop of node orders, compiled by numba."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit


@njit(cache=True)
def breadth_first(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """(n,) int64 nodes of a symmetric CSR graph in the order of a breadth-first search.

    The search starts at node 0, and starts again at the lowest node not yet met. It meets neighbours in the order of their row.
    """
    num_nodes = indptr.size - 1
    order = np.empty(num_nodes, np.int64)
    met = np.zeros(num_nodes, np.bool_)
    count = 0
    for start in range(num_nodes):
        if met[start]:
            continue
        met[start] = True
        order[count] = start
        head, count = count, count + 1
        while head < count:
            node = order[head]
            head += 1
            for entry in range(indptr[node], indptr[node + 1]):
                other = indices[entry]
                if not met[other]:
                    met[other] = True
                    order[count] = other
                    count += 1
    return order
