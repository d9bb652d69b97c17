"""See :mod:`hpcgnn.kernels.dense`."""

from __future__ import annotations

import torch
from torch import Tensor


def arithmetics() -> tuple[str, ...]:
    """The values of ``compute`` that work."""
    return ("float32",)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str) -> None:
    """``out`` (n, H) = ``x`` (n, F) times ``weight`` (F, H), plus ``bias`` (H,), plus ``out`` if ``accumulate``."""
    if accumulate:
        if bias is not None:
            out += bias
        torch.addmm(out, x, weight, out=out)
    elif bias is not None:
        torch.addmm(bias, x, weight, out=out)
    else:
        torch.mm(x, weight, out=out)


def weight_gradient(x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
    """Write ``x.T @ dy``, of ``x`` (n, F) and ``dy`` (n, H), to ``dweight`` (F, H), and the sums of the columns of ``dy`` to
    ``sums`` (H,)."""
    torch.mm(x.T, dy, out=dweight)
    if sums is not None:
        torch.sum(dy, 0, out=sums)
