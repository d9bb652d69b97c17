"""Arguments that several numba kernels share: the rows of each task, and weights, or their absence, as an array."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from hpcgnn.kernels.csr import Csr, as_columns

_TASKS_A_THREAD = 16


def row_tasks(csr: Csr) -> np.ndarray:
    """(tasks, 2) int64 first row, and row after the last, of tasks with about equal work."""
    return np.array(csr.row_blocks(numba.get_num_threads() * _TASKS_A_THREAD), np.int64).reshape(-1, 2)


def weights_or_none(weight: Tensor | None, dtype: np.dtype) -> np.ndarray:
    """(entries, heads) weights; an array of shape (0, 1) stands for ones."""
    return np.zeros((0, 1), dtype) if weight is None else as_columns(weight).numpy()
