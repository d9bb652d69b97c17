"""See :mod:`hpcgnn.kernels.dropout`."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.native.library import function, threads


def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    """``out = x * scale`` where the mask keeps an element, else 0; the mask is a function of (key, id, column)."""
    function("dropout", x.dtype)(
        rows=x.shape[0],
        width=x.shape[1],
        ids=ids,
        key=key,
        threshold=threshold,
        scale=scale,
        x=x,
        out=out,
        threads=threads(),
    )
