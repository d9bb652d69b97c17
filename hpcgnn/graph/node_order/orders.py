"""The orders: permutations of a part's nodes from the edges inside it, in O(edges log edges) time and O(edges) memory.

none    the order of parts.h5, by original id
degree  nodes by the number of edges that leave them, most first: rows that are gathered most often are close together
rcm     reverse Cuthill-McKee: a breadth-first search from the node with the fewest neighbours, which visits neighbours with
        the fewest neighbours first; its order is reversed. Neighbours are close together
hubs    a breadth-first search from the node with the most neighbours, which visits neighbours with the most neighbours first:
        both neighbours and rows that are gathered often are close together
auto    the order that measures fastest, see :mod:`hpcgnn.graph.node_order.choice`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.graph.node_order.methods import ORDERS
from hpcgnn.kernels import Csr

if TYPE_CHECKING:
    import scipy.sparse as sp


def find_order(local: Csr, method: str) -> torch.Tensor:
    """(n,) int64 permutation of the nodes of ``local`` (n, n), whose rows are destinations: new node k is old node [k].

    Equal nodes keep their old order, so that the result is the same every time.
    """
    if method == "degree":
        uses = torch.bincount(local.indices, minlength=local.num_cols)
        return torch.argsort(uses, descending=True, stable=True)
    if method == "rcm":
        return torch.from_numpy(_breadth_first(local, most_first=False)[::-1].copy())
    if method == "hubs":
        return torch.from_numpy(_breadth_first(local, most_first=True))
    raise ValueError(f"method must be one of {', '.join(ORDERS)}, not {method!r}")


def as_scipy(local: Csr) -> sp.csr_matrix:
    """The matrix with bools for entries: SciPy can merge duplicates of these without an overflow."""
    import scipy.sparse as sp

    ones = np.ones(local.num_entries, dtype=bool)
    return sp.csr_matrix(
        (ones, index_array(local.indices), index_array(local.indptr)), shape=(local.num_rows, local.num_cols)
    )


def _breadth_first(local: Csr, *, most_first: bool) -> np.ndarray:
    """(n,) int64 breadth-first order, which takes starts and neighbours by their number of distinct neighbours.

    The matrix is sorted by that number once, so that each row lists its neighbours in the order of the search. SciPy's
    reverse_cuthill_mckee sorts the neighbours of each node by insertion instead, in d² steps for a node with d of them.
    """
    # Both are imported here, because they take time and memory on each rank, and most runs do not ask for an order.
    import scipy.sparse as sp

    from hpcgnn.graph.node_order import loops

    matrix = as_scipy(local)
    matrix = sp.csr_matrix(matrix + matrix.T)
    neighbours = np.diff(matrix.indptr)
    by_number = np.argsort(-neighbours if most_first else neighbours, kind="stable")
    matrix = sp.csr_matrix(matrix[by_number][:, by_number])
    matrix.sort_indices()
    return by_number[loops.breadth_first(matrix.indptr, matrix.indices)]
