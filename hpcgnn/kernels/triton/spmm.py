"""See :mod:`hpcgnn.kernels.spmm`. Rows of at most :data:`tasks.SEGMENT` entries have the bits of numba's kernel."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr, as_columns
from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.tasks import columns_of_a_program, join, tasks_of, tasks_of_a_program, vector

_ENTRIES_AT_ONCE = 8  # reads of up to 16 bytes that each lane starts at once
# A lane adds up at most 8 columns, so it reads 8 bytes of 8-bit integers at once. With 16 columns, sums took 1.2 to 1.4 times as
# long on an H100.
_LEAST_BYTES = 2


def spmm(csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor) -> None:
    if out.numel() == 0:
        return
    tasks, width = tasks_of(csr), x.shape[1]
    size = max(x.element_size(), _LEAST_BYTES)
    heads = 1 if weight is None else as_columns(weight).shape[1]
    columns = width // heads
    block_columns = columns_of_a_program(columns, size)
    block_heads = columns_of_a_program(heads, block_columns * size)
    block_tasks = tasks_of_a_program(block_columns * block_heads, size)
    tiles = triton.cdiv(columns, block_columns) * triton.cdiv(heads, block_heads)
    partial = tasks.scratch(width, out)
    units = vector(columns, x.element_size())
    launch(
        _spmm, triton.cdiv(tasks.count, block_tasks) * tiles,
        tasks.begin, tasks.length, tasks.row, csr.indices, weight, x, scale, out, partial, tasks.count, tasks.parts,
        heads, columns // units,
        VECTOR=units, TASKS=block_tasks, HEADS=block_heads, COLUMNS=block_columns,
        AT_ONCE=2 if interprets() else _ENTRIES_AT_ONCE, ACCUMULATE=accumulate, num_warps=1,
    )  # fmt: skip
    join(tasks, partial, accumulate, out)


@triton.jit
def _term(entry, indices, weight, x, scale, heads, head, of_head, width, exists, within, MASKED: tl.constexpr):
    """(TASKS, HEADS, COLUMNS) the term of one entry of each task, in the type of sums.

    MASKED: some tasks have no such entry (``within`` is false); nothing is read for them.
    """
    if MASKED:
        source = tl.load(indices + entry, mask=within, other=0).to(tl.int64)
        here = exists & within
    else:
        source = tl.load(indices + entry).to(tl.int64)
        here = exists
    value = tl.load(x + source * width + of_head, mask=here, other=0)
    value = value.to(tl.float64 if value.dtype == tl.float64 else tl.float32)
    if scale is not None:
        factor = tl.load(scale + source, mask=within, other=0.0)
        if weight is not None:
            factor = factor * tl.load(weight + entry * heads + head, mask=within & (head < heads), other=0.0)
        value = value * factor
    elif weight is not None:
        value = value * tl.load(weight + entry * heads + head, mask=within & (head < heads), other=0.0)
    return value


@triton.jit
def _added(
    total, begin, length, is_task, indices, weight, x, scale, heads, head, of_head, width, exists, AT_ONCE: tl.constexpr
):
    """``total`` plus the terms of each task's entries, in order. Entries that all tasks of the program have need no mask."""
    least = tl.min(tl.min(tl.min(length, 2), 1), 0) // AT_ONCE * AT_ONCE
    most = tl.max(tl.max(tl.max(length, 2), 1), 0)
    for first in range(0, least, AT_ONCE):
        for k in tl.static_range(AT_ONCE):
            total += _term(
                begin + first + k, indices, weight, x, scale, heads, head, of_head, width, exists, is_task, MASKED=False
            )
    for first in range(least, most, AT_ONCE):
        for k in tl.static_range(AT_ONCE):
            within = first + k < length
            term = _term(
                begin + first + k, indices, weight, x, scale, heads, head, of_head, width, exists, within, MASKED=True
            )
            total = tl.where(within, total + term, total)
    return total


@triton.jit(do_not_specialize=["count", "parts"])
def _spmm(
    begins, lengths, rows, indices, weight, x, scale, out, partial, count, parts, heads, vectors,
    VECTOR: tl.constexpr, TASKS: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Compute TASKS tasks for a tile of HEADS x COLUMNS columns: sums stay in registers, and entries' rows are added in order.

    Consecutive programs take other tasks of the same tile. So programs that run at the same time read narrow pieces of rows, of
    which the caches hold more. A head has ``vectors * VECTOR`` columns.
    """
    blocks = tl.cdiv(count, TASKS)
    tile, columns = tl.program_id(0) // blocks, vectors * VECTOR
    column_tiles = tl.cdiv(columns, COLUMNS)
    task = (tl.program_id(0) % blocks) * TASKS + tl.arange(0, TASKS)[:, None, None]
    head = (tile // column_tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]
    column = (tile % column_tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    of_head = head * columns + column
    width = heads * vectors * VECTOR
    exists = (head < heads) & (column < columns)

    is_task = task < count
    begin = tl.load(begins + task, mask=is_task, other=0)
    length = tl.load(lengths + task, mask=is_task, other=0)
    row = tl.load(rows + task, mask=is_task, other=0).to(tl.int64)
    is_part = task < parts
    to = out + row * width + of_head
    total = tl.zeros((TASKS, HEADS, COLUMNS), out.dtype.element_ty)
    if ACCUMULATE:
        total = tl.load(to, mask=exists & is_task & ~is_part, other=0.0)

    total = _added(
        total, begin, length, is_task, indices, weight, x, scale, heads, head, of_head, width, exists, AT_ONCE=AT_ONCE
    )
    tl.store(to, total, mask=exists & is_task & ~is_part)
    tl.store(partial + task.to(tl.int64) * width + of_head, total, mask=exists & is_part)
