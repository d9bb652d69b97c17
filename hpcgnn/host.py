"""Tensors as numpy arrays on the host: what plans, files and metrics are made of.

Features, messages and gradients stay tensors, wherever they lie; only kernels and MPI look at their memory. So these two
functions, beside ``kernels/`` and ``comm/``, are the only places where a tensor becomes an array, and both copy from a device.
"""

from __future__ import annotations

import numpy as np
import torch


def index_array(numbers: torch.Tensor) -> np.ndarray:
    """Integers or bools: ids, places, counts, masks. The array shares memory with a tensor of the host.

    Raises:
        TypeError: for floating-point values, which are no index.
    """
    if numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"an index is made of integers or bools, not of {numbers.dtype}")
    return numbers.detach().cpu().numpy()


def host_values(values: torch.Tensor) -> np.ndarray:
    """Floating-point values that leave training: scores for a metric or a file, edge weights for a plan."""
    return values.detach().cpu().numpy()
