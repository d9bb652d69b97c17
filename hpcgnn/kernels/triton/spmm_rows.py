"""The product of a matrix and rows of a wire buffer, which are decoded in registers: each entry reads the few bytes of its row.

The sums are those of :mod:`hpcgnn.kernels.triton.spmm` with decoded rows, bit for bit: the tasks are the same, and so is the
order in which each task adds its entries.
"""

# mypy: disallow-incomplete-defs=False, disable-error-code="assignment,attr-defined,var-annotated"
# ruff: noqa: RUF005 - Triton's tuples grow by addition, and take no starred items

from __future__ import annotations

import triton
import triton.language as tl

from hpcgnn.kernels.triton.quantize import column_of, grid_in, value_of
from hpcgnn.kernels.triton.words import load_words


@triton.jit
def _add_entries(
    totals,
    first,
    within,
    indices,
    weight,
    buffer,
    payload_at,
    params_at,
    lane,
    exists,
    BITS: tl.constexpr,
    SLOTS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    PARAMS_ALIGNMENT: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """``totals`` plus AT_ONCE entries of each task from ``first`` (tasks, 1) on, of which only the first ``within`` are added.

    Each step (row number, offset, bytes) is read for all of these entries before the next step, which depends on it.
    """
    sources, starts, params, factors, codes = (), (), (), (), ()
    for k in tl.static_range(AT_ONCE):
        sources = sources + (tl.load(indices + first + k, mask=k < within, other=0),)
    for k in tl.static_range(AT_ONCE):
        at = tl.load(payload_at + sources[k], mask=k < within, other=0)
        starts = starts + (buffer + tl.multiple_of(at, (1, ALIGNMENT)),)
        if BITS <= 8:
            at = tl.load(params_at + sources[k], mask=k < within, other=0)
            at = buffer + tl.multiple_of(at, (1, PARAMS_ALIGNMENT))
            params = params + (load_words(at, 0, k < within, 4, PARAMS_ALIGNMENT),)
        else:
            params = params + (0,)
        factors = factors + (1.0 if weight is None else tl.load(weight + first + k, mask=k < within, other=0.0),)
    for k in tl.static_range(AT_ONCE):
        codes = codes + (load_words(starts[k], lane, exists & (k < within), (BITS + 7) // 8, ALIGNMENT),)
    for k in tl.static_range(AT_ONCE):
        sums = ()
        if BITS <= 8:
            zero, scale = grid_in(params[k])
        for slot in tl.static_range(SLOTS):
            if BITS == 32:
                value = codes[k].to(tl.float32, bitcast=True)
            elif BITS == 16:
                value = (codes[k] << 16).to(tl.float32, bitcast=True)
            else:
                value = value_of(codes[k].to(tl.int32, bitcast=True), slot, zero, scale, BITS)
            if weight is not None:
                value *= factors[k]
            sums = sums + (tl.where(k < within, totals[slot] + value, totals[slot]),)
        totals = sums
    return totals


@triton.jit(do_not_specialize=["count", "parts"])
def spmm_rows(
    begins,
    lengths,
    rows,
    indices,
    weight,
    buffer,
    payload_at,
    params_at,
    out,
    partial,
    count,
    parts,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    SLOTS: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    PARAMS_ALIGNMENT: tl.constexpr,
    TASKS: tl.constexpr,
    TILE: tl.constexpr,
    VECTOR: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Compute TASKS tasks for TILE of the LANES of a row; add them to ``out`` (R, WIDTH), or write parts of hubs to
    ``partial``."""
    blocks = tl.cdiv(count, TASKS)
    task = (tl.program_id(0) % blocks) * TASKS + tl.arange(0, TASKS)[:, None]
    lane = tl.program_id(0) // blocks * TILE + tl.arange(0, TILE)[None, :]
    # A thread reads VECTOR of these lanes at once, and keeps their sums in its registers.
    read = tl.program_id(0) // blocks * TILE + tl.max_contiguous(tl.arange(0, TILE), VECTOR)[None, :]
    is_task = task < count
    begin = tl.load(begins + task, mask=is_task, other=0)
    length = tl.load(lengths + task, mask=is_task, other=0)
    is_part = task < parts
    to = out + tl.load(rows + task, mask=is_task, other=0).to(tl.int64) * WIDTH
    exists = lane < LANES
    totals = ()
    for slot in tl.static_range(SLOTS):
        column = column_of(lane, slot, WIDTH, SLOTS, STRIDE)
        totals = totals + (tl.load(to + column, mask=exists & (column < WIDTH) & is_task & ~is_part, other=0.0),)
    for done in range(0, tl.max(tl.max(length, axis=1), axis=0), AT_ONCE):
        totals = _add_entries(
            totals, begin + done, length - done, indices, weight, buffer, payload_at, params_at, read, exists,
            BITS, SLOTS, ALIGNMENT, PARAMS_ALIGNMENT, AT_ONCE,
        )  # fmt: skip
    for slot in tl.static_range(SLOTS):
        column = column_of(lane, slot, WIDTH, SLOTS, STRIDE)
        there = exists & (column < WIDTH)
        tl.store(to + column, totals[slot], mask=there & is_task & ~is_part)
        tl.store(partial + task.to(tl.int64) * WIDTH + column, totals[slot], mask=there & is_part)
