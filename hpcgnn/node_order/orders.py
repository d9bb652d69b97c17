"""The orders. Each takes the edges inside a part and gives a permutation, in O(edges log edges) time and O(edges) memory.

none    as in parts.h5, that is by original id
degree  the node that most edges leave first: what is gathered most often is close together
rcm     reverse Cuthill-McKee: breadth first from the node with the fewest neighbours, fewest first, backwards; neighbours
        are close together
hubs    breadth first from the node with the most neighbours, most first; between the two
auto    whichever of these is measured to be the fastest, see :mod:`hpcgnn.node_order.choice`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcgnn.host import index_array
from hpcgnn.kernels import Csr
from hpcgnn.node_order.methods import ORDERS

if TYPE_CHECKING:
    import scipy.sparse as sp


def find_order(local: Csr, method: str) -> torch.Tensor:
    """(n,) int64 permutation of the nodes of ``local`` (n, n), whose row is the destination: new node k is old node [k].

    Ties keep the old order, so that the result is the same every time.
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
    """The entries as bools, of which duplicates can be merged without a sum that overflows."""
    import scipy.sparse as sp

    ones = np.ones(local.num_entries, dtype=bool)
    return sp.csr_matrix(
        (ones, index_array(local.indices), index_array(local.indptr)), shape=(local.num_rows, local.num_cols)
    )


def _breadth_first(local: Csr, *, most_first: bool) -> np.ndarray:
    """(n,) int64 breadth-first order; starts and neighbours by their number of distinct neighbours.

    The matrix is sorted by that number once, so that each row lists its neighbours in the order in which they are to be
    met: SciPy's reverse_cuthill_mckee sorts them where it meets them, by insertion, which takes d² steps at a hub.
    """
    # Here, as both take time to start and memory of each rank, and most runs do not ask for an order.
    import scipy.sparse as sp

    from hpcgnn.node_order import loops

    matrix = as_scipy(local)
    matrix = sp.csr_matrix(matrix + matrix.T)
    neighbours = np.diff(matrix.indptr)
    by_number = np.argsort(-neighbours if most_first else neighbours, kind="stable")
    matrix = sp.csr_matrix(matrix[by_number][:, by_number])
    matrix.sort_indices()
    return by_number[loops.breadth_first(matrix.indptr, matrix.indices)]
