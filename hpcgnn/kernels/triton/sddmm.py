"""A value for each entry from the two rows that it joins; part of :mod:`hpcgnn.kernels.triton.edges`.

Programs take equal numbers of entries, independent of rows. Dot products have the bits of the native kernel.
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.tasks import plan_of, vector

_LANES = 16  # partial sums of a dot product, as in native/edges.h
_MOST_CHUNKS = 4  # chunks of _LANES columns that are read before the first is used
_VALUES = 2048  # values that a program of 128 lanes reads at once: four reads of 16 bytes by each lane
_INTERPRETED = 16  # an interpreted program takes this many times as much
_MOST_HEADS = 32  # heads of a tile
_MOST_COLUMNS = 128  # columns of a tile of sums


def sddmm(csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
    """Write ``op`` of row r of ``a`` and row c of ``b`` to ``out`` for each entry (r, c); ``left`` is ``a`` alone."""
    if out.numel() == 0:
        return
    if op == "dot" and b is not None:
        _dots(csr, a, b, heads, out)
        return
    units = vector(a.shape[1], a.element_size())
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(a.shape[1]))
    entries = _values() // columns
    launch(
        _add,
        triton.cdiv(csr.num_entries, entries) * triton.cdiv(a.shape[1], columns),
        plan_of(csr).entry_rows,
        csr.indices,
        a,
        b,
        out,
        csr.num_entries,
        a.shape[1] // units,
        VECTOR=units,
        ENTRIES=entries,
        COLUMNS=columns,
    )


def _dots(csr: Csr, a: Tensor, b: Tensor, heads: int, out: Tensor) -> None:
    columns = a.shape[1] // heads
    units = vector(columns, a.element_size())
    chunks = min(_MOST_CHUNKS, triton.next_power_of_2(max(1, triton.cdiv(columns, _LANES))))
    block_heads = min(_MOST_HEADS, triton.next_power_of_2(heads))
    entries = max(1, _values() // (chunks * _LANES * block_heads))
    launch(
        _dot,
        triton.cdiv(csr.num_entries, entries) * triton.cdiv(heads, block_heads),
        plan_of(csr).entry_rows,
        csr.indices,
        a,
        b,
        out,
        csr.num_entries,
        heads,
        columns // units,
        VECTOR=units,
        ENTRIES=entries,
        HEADS=block_heads,
        LANES=_LANES,
        CHUNKS=chunks,
    )


def _values() -> int:
    return _VALUES * _INTERPRETED if interprets() else _VALUES


@triton.jit(do_not_specialize=["entries"])
def _add(
    entry_rows, indices, a, b, out, entries, vectors, VECTOR: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr
):
    width = vectors * VECTOR
    tiles = tl.cdiv(width, COLUMNS)
    entry = (tl.program_id(0) // tiles).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)[:, None]
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    exists = (entry < entries) & (column < width)
    row = tl.load(entry_rows + entry, mask=entry < entries, other=0).to(tl.int64)
    value = tl.load(a + row * vectors * VECTOR + column, mask=exists, other=0.0)
    if b is not None:
        source = tl.load(indices + entry, mask=entry < entries, other=0).to(tl.int64)
        value += tl.load(b + source * vectors * VECTOR + column, mask=exists, other=0.0)
    tl.store(out + entry * vectors * VECTOR + column, value, mask=exists)


@triton.jit(do_not_specialize=["entries"])
def _dot(
    entry_rows,
    indices,
    a,
    b,
    out,
    entries,
    heads,
    vectors,
    VECTOR: tl.constexpr,
    ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Lane l of LANES adds the products of the columns l, l + LANES, ... of a head; the sums of lanes are then added by
    halves."""
    columns, tiles = vectors * VECTOR, tl.cdiv(heads, HEADS)
    entry = (tl.program_id(0) // tiles).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)[:, None, None]
    head = (tl.program_id(0) % tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]
    lane = tl.arange(0, LANES)[None, None, :]
    exists = (entry < entries) & (head < heads)
    row = tl.load(entry_rows + entry, mask=entry < entries, other=0).to(tl.int64)
    source = tl.load(indices + entry, mask=entry < entries, other=0).to(tl.int64)
    left = a + row * heads * vectors * VECTOR + head * columns + lane
    right = b + source * heads * vectors * VECTOR + head * columns + lane
    total = tl.zeros((ENTRIES, HEADS, LANES), out.dtype.element_ty)
    for first in range(0, columns, CHUNKS * LANES):
        for chunk in tl.static_range(CHUNKS):
            at = first + chunk * LANES
            here = exists & (lane + at < columns)
            total += tl.load(left + at, mask=here, other=0.0) * tl.load(right + at, mask=here, other=0.0)
    half: tl.constexpr = LANES // 2
    total = tl.sum(tl.reshape(total, (ENTRIES, HEADS, 2, half)), 2)  # a sum of two values has only one order
    total = tl.sum(tl.reshape(total, (ENTRIES, HEADS, 2, half // 2)), 2)
    total = tl.sum(tl.reshape(total, (ENTRIES, HEADS, 2, half // 4)), 2)
    total = tl.sum(total, 2, keep_dims=True)
    tl.store(out + entry * heads + head, total, mask=exists)
