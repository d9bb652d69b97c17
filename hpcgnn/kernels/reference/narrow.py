"""See :mod:`hpcgnn.kernels.narrow`."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``, rounded to the nearest, ties to even."""
    out.copy_(x).masked_fill_(x.isnan(), torch.nan)  # copy_ writes one of two NaNs, depending on the position


def unpack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``."""
    out.copy_(x)
