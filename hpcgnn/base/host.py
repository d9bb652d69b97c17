"""Conversion of tensors to numpy arrays on the host. Only ``kernels/``, ``world/`` and ``exchange/``
look at the memory of tensors; everywhere else a tensor becomes an array by one of these two functions."""

from __future__ import annotations

import numpy as np
import torch


def index_array(numbers: torch.Tensor) -> np.ndarray:
    """The array of a tensor of integers or bools: ids, positions, counts, masks. It shares memory with a tensor on the host.
    Raises TypeError for floating-point values, which are no index."""
    if numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"an index is made of integers or bools, not of {numbers.dtype}")
    return numbers.detach().cpu().numpy()


def host_values(values: torch.Tensor) -> np.ndarray:
    """The array of a tensor that training no longer needs: scores for a metric or a file, edge weights for a plan."""
    return values.detach().cpu().numpy()
