"""See :mod:`hpcgnn.kernels.dropout`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpcgnn.kernels import keyed


def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    """``out = x * scale`` where the mask keeps an element, else 0; the mask is a function of (key, id, column)."""
    hashes = keyed.row_hashes(key, ids.numpy())
    kept = keyed.draws(hashes[:, None], np.arange(x.shape[1])[None, :]) >= np.uint32(threshold)
    torch.mul(x, scale, out=out)
    out.masked_fill_(torch.from_numpy(~kept), 0)
