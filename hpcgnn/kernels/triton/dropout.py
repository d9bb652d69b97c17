"""See :mod:`hpcgnn.kernels.activation`."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.triton import keyed
from hpcgnn.kernels.triton.launch import launch
from hpcgnn.kernels.triton.tiles import WARP, padded, rows_of_tile, warps


def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    """``out = x * scale`` (n, F) where the mask keeps an element, else 0; the mask is a function of (key, id, column)."""
    rows, width = x.shape
    wide = padded(width)
    together = rows_of_tile(rows, wide, WARP)
    launch(
        _dropout, triton.cdiv(rows, together) if width else 0, x, ids, key, out, rows, THRESHOLD=threshold, SCALE=scale,
        WIDTH=width, ROWS=together, PADDED=wide, num_warps=warps(together * wide),
    )  # fmt: skip


@triton.jit
def kept(key, ids, column, THRESHOLD: tl.constexpr):
    """(rows, columns) whether dropout keeps each element of the rows with these (rows,) int64 ids."""
    low, high = keyed.row_hash(key, ids)
    return keyed.draw(low[:, None], high[:, None], column) >= THRESHOLD


@triton.jit(do_not_specialize=["key", "count"])
def _dropout(
    x,
    ids,
    key: tl.uint64,
    out,
    count,
    THRESHOLD: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)[None, :]
    mask = (i < count)[:, None] & (column < WIDTH)
    at = (i * WIDTH)[:, None] + column
    values = tl.load(x + at, mask=mask, other=0.0)
    stays = kept(key, tl.load(ids + i, mask=i < count, other=0), column, THRESHOLD)
    tl.store(out + at, tl.where(stays, values * SCALE, 0.0), mask=mask)
