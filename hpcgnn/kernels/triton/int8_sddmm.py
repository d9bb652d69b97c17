"""Products for each entry of two rows of 8-bit integers; part of :mod:`hpcgnn.kernels.triton.int8`.

Programs take equal numbers of entries, as in :mod:`hpcgnn.kernels.triton.sddmm`. Sums of products are integers, so their order
does not matter, and a lane takes 16 consecutive columns of a row, which are one read.
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.tasks import plan_of, vector

_BYTES = 8192  # bytes of each operand that a program of 128 lanes reads at once: four reads of 16 bytes by each lane
_INTERPRETED = 16  # an interpreted program takes this many times as much
_MOST_HEADS = 32  # heads of a tile
_MOST_OF_A_HEAD = 256  # columns of a tile of products


def sddmm(csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
    """Write the products of row r of ``a`` and row c of ``b``, codes with scales, to ``out`` for each entry (r, c)."""
    if out.numel() == 0:
        return
    given = plan_of(csr).entry_rows, csr.indices, a, a_scale, b, b_scale, out, csr.num_entries
    more = _INTERPRETED if interprets() else 1
    of_a_head = a.shape[1] // heads
    units = vector(of_a_head, 1)
    columns = min(_MOST_OF_A_HEAD, triton.next_power_of_2(max(1, of_a_head)))
    block_heads = min(_MOST_HEADS, triton.next_power_of_2(heads))
    entries = max(1, _BYTES * more // (columns * block_heads))
    launch(
        _dot_codes, triton.cdiv(csr.num_entries, entries) * triton.cdiv(heads, block_heads), *given,
        heads, of_a_head // units, VECTOR=units, ENTRIES=entries, HEADS=block_heads, COLUMNS=columns,
    )  # fmt: skip


@triton.jit
def _rows_of(entry_rows, indices, a_scale, b_scale, entry, entries):
    """The numbers of the row of ``a`` and the row of ``b`` that each entry joins, and their scales."""
    row = tl.load(entry_rows + entry, mask=entry < entries, other=0).to(tl.int64)
    source = tl.load(indices + entry, mask=entry < entries, other=0).to(tl.int64)
    of_a = tl.load(a_scale + row, mask=entry < entries, other=0.0)
    of_b = tl.load(b_scale + source, mask=entry < entries, other=0.0)
    return row, source, of_a, of_b


@triton.jit(do_not_specialize=["entries"])
def _dot_codes(
    entry_rows,
    indices,
    a,
    a_scale,
    b,
    b_scale,
    out,
    entries,
    heads,
    vectors,
    VECTOR: tl.constexpr,
    ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns, tiles = vectors * VECTOR, tl.cdiv(heads, HEADS)
    entry = (tl.program_id(0) // tiles).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)[:, None, None]
    head = (tl.program_id(0) % tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]
    column = tl.arange(0, COLUMNS)[None, None, :]
    exists = (entry < entries) & (head < heads)
    row, source, of_a, of_b = _rows_of(entry_rows, indices, a_scale, b_scale, entry, entries)
    left = a + row * heads * vectors * VECTOR + head * columns + column
    right = b + source * heads * vectors * VECTOR + head * columns + column
    total = tl.zeros((ENTRIES, HEADS, 1), tl.int32)
    for first in range(0, columns, COLUMNS):
        here = exists & (first + column < columns)
        one = tl.load(left + first, mask=here, other=0).to(tl.int32)
        other = tl.load(right + first, mask=here, other=0).to(tl.int32)
        total += tl.sum(one * other, 2, keep_dims=True)
    tl.store(out + entry * heads + head, total.to(tl.float32) * (of_a * of_b), mask=exists)
