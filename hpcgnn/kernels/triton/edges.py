"""See :mod:`hpcgnn.kernels.edges`. Softmaxes and sums are divided into tasks (tasks.py), so that no program waits for a hub."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.tasks import LANES, join, rows_of_entries, tasks_of, vector

_MOST_HEADS = 32  # heads of a tile

__all__ = ["edge_softmax", "edge_softmax_backward", "edge_sum", "sddmm"]


def edge_softmax(csr: Csr, scores: Tensor, out: Tensor) -> None:
    if out.numel() == 0:
        return
    tasks, shape, heads = tasks_of(csr), _shape_of_a_program(csr, scores), scores.shape[1]
    tops, totals = tasks.scratch(heads, scores), tasks.scratch(heads, scores)
    at = (tasks.begin, tasks.length, tasks.hub_of, scores)
    _launch_on_tasks(_softmax, tasks.count, (*at, tops, totals, out), tasks.parts, scores, shape, JOINED=False)
    if tasks.parts:
        hub_tops, hub_totals = (scores.new_empty(tasks.hubs.numel(), heads) for _ in range(2))
        block = min(_MOST_HEADS, triton.next_power_of_2(heads))
        launch(
            _join_softmax, tasks.hubs.numel() * triton.cdiv(heads, block),
            tops, totals, tasks.hub_parts, hub_tops, hub_totals, heads,
            PARTS=32, HEADS=block, num_warps=1,
        )  # fmt: skip
        of_hubs = (*at, hub_tops, hub_totals, out)
        _launch_on_tasks(_softmax, tasks.parts, of_hubs, tasks.parts, scores, shape, JOINED=True)


def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
    if out.numel() == 0:
        return
    tasks, shape, heads = tasks_of(csr), _shape_of_a_program(csr, alpha), alpha.shape[1]
    partial = tasks.scratch(heads, alpha)
    at = (tasks.begin, tasks.length, tasks.hub_of, alpha, gradient)
    _launch_on_tasks(_softmax_backward, tasks.count, (*at, partial, out), tasks.parts, alpha, shape, JOINED=False)
    if tasks.parts:
        totals = alpha.new_empty(tasks.hubs.numel(), heads)
        join(tasks, partial, False, totals, by_hub=True)
        _launch_on_tasks(_softmax_backward, tasks.parts, (*at, totals, out), tasks.parts, alpha, shape, JOINED=True)


def edge_sum(csr: Csr, values: Tensor, out: Tensor) -> None:
    if out.numel() == 0:
        return
    tasks = tasks_of(csr)
    partial = tasks.scratch(values.shape[1], values)
    arguments = (tasks.begin, tasks.length, tasks.row, values, partial, out)
    _launch_on_tasks(_sum, tasks.count, arguments, tasks.parts, values, _shape_of_a_program(csr, values))
    join(tasks, partial, False, out)


def _shape_of_a_program(csr: Csr, values: Tensor) -> dict[str, int]:
    """The sizes (TASKS, ENTRIES, HEADS), powers of two, of a warp's tile for rows of average length of ``values`` (entries, H).

    With these, a lane has two reads of 16 bytes under way, or four shorter ones; more would take registers from other warps.
    """
    heads = triton.next_power_of_2(values.shape[1])
    if interprets():
        return {"TASKS": 16, "ENTRIES": 32, "HEADS": min(heads, 512)}
    heads = min(heads, _MOST_HEADS)
    at_once = LANES * max(4, 2 * vector(values.shape[1], values.element_size()))
    usual = triton.next_power_of_2(triton.cdiv(csr.num_entries, csr.num_rows))
    entries = max(8, min(usual, at_once // heads))
    return {"TASKS": max(1, at_once // (entries * heads)), "ENTRIES": entries, "HEADS": heads}


def _launch_on_tasks(
    kernel: triton.JITFunction, count: int, arguments: tuple[Tensor, ...], parts: int, values: Tensor,
    shape: dict[str, int], **constants: bool,
) -> None:  # fmt: skip
    """Start a kernel for the first ``count`` tasks, divided into tiles of the columns of ``values`` (entries, H)."""
    units = vector(values.shape[1], values.element_size())
    programs = triton.cdiv(count, shape["TASKS"]) * triton.cdiv(values.shape[1], shape["HEADS"])
    sizes = (count, parts, values.shape[1] // units)
    launch(kernel, programs, *arguments, *sizes, VECTOR=units, **shape, **constants, num_warps=1)


@triton.jit
def _exponential(x):
    """e^x for x <= 0; in float32, the relative error is a few 2^-24, and the result is 0 below -87. -inf gives 0, NaN gives NaN.

    The hardware's exponential is as exact near 0 only, where x lies after a power of two is factored out.
    """
    if x.dtype == tl.float32:
        shifted = x * 1.4426950408889634 + 12582912.0  # plus 1.5 * 2^23: the last bits hold the nearest integer
        power = shifted - 12582912.0
        rest = (x - power * 0.693359375) + power * 2.12194440e-4  # log 2 as two numbers, so that one product is exact
        two_to_it = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
        result = tl.where(x < -87.0, 0.0, tl.exp(rest) * two_to_it)
    else:
        result = tl.exp(x)
    return result


@triton.jit
def _tile(
    begins, lengths, count, parts, vectors,
    VECTOR: tl.constexpr, TASKS: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """This program's tasks, their numbers of entries (0 for heads that do not exist) and the most of them, whether a task is a
    part, the heads, and the first ENTRIES entries of each task with their places."""
    tiles = tl.cdiv(vectors * VECTOR, HEADS)
    task = (tl.program_id(0) // tiles) * TASKS + tl.arange(0, TASKS)[:, None, None]
    head = (tl.program_id(0) % tiles) * HEADS + tl.arange(0, HEADS)[None, None, :]
    begin = tl.load(begins + task, mask=task < count, other=0)
    length = tl.load(lengths + task, mask=task < count, other=0)
    length = tl.where(head < vectors * VECTOR, length, 0)
    entry = tl.arange(0, ENTRIES)[None, :, None]
    place = (begin + entry) * vectors * VECTOR + head
    return task, length, tl.max(tl.max(tl.max(length, 2), 1), 0), task < parts, head, entry, place


@triton.jit(do_not_specialize=["count", "parts"])
def _softmax(
    begins, lengths, hub_of, scores, tops, totals, out, count, parts, vectors,
    VECTOR: tl.constexpr, TASKS: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """Write the softmaxes of whole rows to ``out``; for each part of a hub, write the largest score to ``tops`` (parts, H) and
    the sum of exponentials to ``totals`` (parts, H).

    With JOINED, write the softmaxes of parts, from the ``tops`` and ``totals`` (hubs, H) of whole hubs. The first ENTRIES of a
    row stay in registers; the others are read three times, the second and third time from the caches.
    """
    task, length, most, is_part, head, entry, place = _tile(
        begins, lengths, count, parts, vectors, VECTOR, TASKS, ENTRIES, HEADS
    )
    heads = vectors * VECTOR
    exists = head < heads
    score_0 = tl.load(scores + place, mask=entry < length, other=float("-inf"))
    if JOINED:
        hub = tl.load(hub_of + task, mask=is_part, other=0).to(tl.int64)
        top = tl.load(tops + hub * heads + head, mask=is_part & exists, other=0.0)
        total = tl.load(totals + hub * heads + head, mask=is_part & exists, other=1.0)
        alpha_0 = _exponential(score_0 - top)
    else:
        largest = score_0
        for first in range(ENTRIES, most, ENTRIES):
            score = tl.load(scores + place + first * heads, mask=first + entry < length, other=float("-inf"))
            largest = tl.maximum(largest, score)
        top = tl.max(largest, 1, keep_dims=True)
        top = tl.where(top == float("-inf"), 0.0, top)
        alpha_0 = _exponential(score_0 - top)
        sums = alpha_0
        for first in range(ENTRIES, most, ENTRIES):
            score = tl.load(scores + place + first * heads, mask=first + entry < length, other=float("-inf"))
            sums += _exponential(score - top)
        total = tl.sum(sums, 1, keep_dims=True)
        of_part = task.to(tl.int64) * heads + head
        tl.store(tops + of_part, top, mask=is_part & exists)
        tl.store(totals + of_part, total, mask=is_part & exists)
        length = tl.where(is_part, 0, length)
    factor = 1.0 / tl.where(total == 0, 1.0, total)
    tl.store(out + place, alpha_0 * factor, mask=entry < length)
    for first in range(ENTRIES, most, ENTRIES):
        score = tl.load(scores + place + first * heads, mask=first + entry < length, other=float("-inf"))
        tl.store(out + place + first * heads, _exponential(score - top) * factor, mask=first + entry < length)


@triton.jit
def _join_softmax(tops, totals, hub_parts, hub_tops, hub_totals, heads, PARTS: tl.constexpr, HEADS: tl.constexpr):
    """Write the largest of ``tops`` (parts, H) over each hub's parts to ``hub_tops`` (hubs, H), and the sums of exponentials
    relative to it to ``hub_totals`` (hubs, H)."""
    tiles = tl.cdiv(heads, HEADS)
    hub = tl.program_id(0) // tiles
    head = (tl.program_id(0) % tiles) * HEADS + tl.arange(0, HEADS)[None, :]
    first, last = tl.load(hub_parts + hub), tl.load(hub_parts + hub + 1)
    end = tl.where(head < heads, last, 0)  # heads that do not exist have no parts
    largest = tl.full((PARTS, HEADS), float("-inf"), tops.dtype.element_ty)
    for start in range(first, last, PARTS):
        part = start + tl.arange(0, PARTS)[:, None]
        top = tl.load(tops + part.to(tl.int64) * heads + head, mask=part < end, other=float("-inf"))
        largest = tl.maximum(largest, top)
    largest = tl.max(largest, 0, keep_dims=True)
    sums = tl.zeros((PARTS, HEADS), totals.dtype.element_ty)
    for start in range(first, last, PARTS):
        part = start + tl.arange(0, PARTS)[:, None]
        place = part.to(tl.int64) * heads + head
        top = tl.load(tops + place, mask=part < end, other=float("-inf"))
        sums += tl.load(totals + place, mask=part < end, other=0.0) * _exponential(top - largest)
    tl.store(hub_tops + hub.to(tl.int64) * heads + head, largest, mask=head < heads)
    tl.store(hub_totals + hub.to(tl.int64) * heads + head, tl.sum(sums, 0, keep_dims=True), mask=head < heads)


@triton.jit(do_not_specialize=["count", "parts"])
def _softmax_backward(
    begins, lengths, hub_of, alpha, gradient, sums, out, count, parts, vectors,
    VECTOR: tl.constexpr, TASKS: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """Write the gradients of whole rows to ``out``, and the sums of ``alpha * gradient`` over parts to ``sums`` (parts, H).

    With JOINED, write the gradients of parts, from the sums of whole hubs in ``sums`` (hubs, H).
    """
    task, length, most, is_part, head, entry, place = _tile(
        begins, lengths, count, parts, vectors, VECTOR, TASKS, ENTRIES, HEADS
    )
    heads = vectors * VECTOR
    exists = head < heads
    alpha_0 = tl.load(alpha + place, mask=entry < length, other=0.0)
    gradient_0 = tl.load(gradient + place, mask=entry < length, other=0.0)
    if JOINED:
        hub = tl.load(hub_of + task, mask=is_part, other=0).to(tl.int64)
        total = tl.load(sums + hub * heads + head, mask=is_part & exists, other=0.0)
    else:
        products = alpha_0 * gradient_0
        for first in range(ENTRIES, most, ENTRIES):
            here, at = first + entry < length, place + first * heads
            products += tl.load(alpha + at, mask=here, other=0.0) * tl.load(gradient + at, mask=here, other=0.0)
        total = tl.sum(products, 1, keep_dims=True)
        tl.store(sums + task.to(tl.int64) * heads + head, total, mask=is_part & exists)
        length = tl.where(is_part, 0, length)
    tl.store(out + place, alpha_0 * (gradient_0 - total), mask=entry < length)
    for first in range(ENTRIES, most, ENTRIES):
        here, at = first + entry < length, place + first * heads
        share = tl.load(alpha + at, mask=here, other=0.0)
        tl.store(out + at, share * (tl.load(gradient + at, mask=here, other=0.0) - total), mask=here)


@triton.jit(do_not_specialize=["count", "parts"])
def _sum(
    begins, lengths, rows, values, partial, out, count, parts, vectors,
    VECTOR: tl.constexpr, TASKS: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Write the sums of whole rows to ``out``, and those of parts to ``partial`` (parts, H)."""
    task, length, most, is_part, head, entry, place = _tile(
        begins, lengths, count, parts, vectors, VECTOR, TASKS, ENTRIES, HEADS
    )
    heads = vectors * VECTOR
    sums = tl.zeros((TASKS, ENTRIES, HEADS), values.dtype.element_ty)
    for first in range(0, most, ENTRIES):
        sums += tl.load(values + place + first * heads, mask=first + entry < length, other=0.0)
    total = tl.sum(sums, 1, keep_dims=True)
    row = tl.load(rows + task, mask=task < count, other=0).to(tl.int64)
    tl.store(out + row * heads + head, total, mask=(task < count) & ~is_part & (head < heads))
    tl.store(partial + task.to(tl.int64) * heads + head, total, mask=is_part & (head < heads))


_LANES = 16  # partial sums of a dot product, as in native/edges.h
_MOST_CHUNKS = 4  # chunks of _LANES columns that are read before the first is used
_VALUES = 2048  # values that a program of 128 lanes reads at once: four reads of 16 bytes by each lane
_INTERPRETED = 16  # an interpreted program takes this many times as much
_MOST_COLUMNS = 128  # columns of a tile of sums


def sddmm(csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
    if out.numel() == 0:
        return
    if op == "dot" and b is not None:
        chunks = triton.next_power_of_2(max(1, triton.cdiv(a.shape[1] // heads, _LANES)))
        chunks = min(_MOST_CHUNKS, chunks)
        launch_dots(_dot, csr, (a, b), out, _values(), chunks * _LANES, LANES=_LANES, CHUNKS=chunks)
        return
    units = vector(a.shape[1], a.element_size())
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(a.shape[1]))
    entries = _values() // columns
    launch(
        _add, triton.cdiv(csr.num_entries, entries) * triton.cdiv(a.shape[1], columns),
        rows_of_entries(csr), csr.indices, a, b, out, csr.num_entries, a.shape[1] // units,
        VECTOR=units, ENTRIES=entries, COLUMNS=columns,
    )  # fmt: skip


def launch_dots(
    kernel: triton.JITFunction, csr: Csr, operands: tuple[Tensor, ...], out: Tensor, values: int, columns: int,
    **constants: int,
) -> None:  # fmt: skip
    """Start ``kernel``, which writes the dot product of the rows of each entry, in ``operands``, to ``out`` (entries, H).

    values: values of each operand that a program reads at once, ``columns`` of them in a head.
    """
    heads, of_a_head = out.shape[1], operands[0].shape[1] // out.shape[1]
    units = vector(of_a_head, operands[0].element_size())
    block_heads = min(_MOST_HEADS, triton.next_power_of_2(heads))
    entries = max(1, values // (columns * block_heads))
    launch(
        kernel, triton.cdiv(csr.num_entries, entries) * triton.cdiv(heads, block_heads),
        rows_of_entries(csr), csr.indices, *operands, out, csr.num_entries, heads, of_a_head // units,
        VECTOR=units, ENTRIES=entries, HEADS=block_heads, **constants,
    )  # fmt: skip


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
    entry_rows, indices, a, b, out, entries, heads, vectors,
    VECTOR: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Lane l of LANES adds the products of a head's columns l, l + LANES, ...; the sums of lanes are then added by halves."""
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
