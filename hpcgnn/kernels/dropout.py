"""Dropout whose mask is a function of what it is for, so that it is the same on any number of ranks."""

from __future__ import annotations

import torch

from hpcgnn.kernels import keyed
from hpcgnn.kernels.backend import implementation


def dropout(x: torch.Tensor, ids: torch.Tensor, key: int, probability: float, backend: str = "auto") -> torch.Tensor:
    """``x`` (n, F) with each element zeroed with ``probability``, the others divided by ``1 - probability``.

    Whether an element survives depends on (``key``, ``ids[row]``, column) alone. ``ids`` is (n,) int64.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kernels = implementation("dropout", backend)
    kernels.dropout(x.contiguous(), ids, key, keyed.threshold(probability), 1 / (1 - probability), out)
    return out
