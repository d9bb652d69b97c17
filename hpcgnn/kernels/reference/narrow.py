"""See :mod:`hpcgnn.kernels.narrow`."""

from __future__ import annotations

import torch


def pack_bf16(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = ``x``, to the nearest."""
    out.copy_(x).masked_fill_(x.isnan(), torch.nan)  # torch has two NaNs: which one it writes depends on the place


def unpack_bf16(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = ``x``."""
    out.copy_(x)
