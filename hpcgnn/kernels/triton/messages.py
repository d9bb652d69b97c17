"""See :mod:`hpcgnn.kernels.messages`."""

# mypy: disallow-incomplete-defs=False, disable-error-code="assignment,attr-defined,var-annotated"
# ruff: noqa: RUF005 - Triton's tuples grow by addition, and take no starred items

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.kernels import packing
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton import keyed
from hpcgnn.kernels.triton.launch import WARP, interprets, launch, padded, rows_of_tile, warps
from hpcgnn.kernels.triton.tasks import join, tasks_of
from hpcgnn.kernels.triton.words import alignment_of, decode_words, encode_words, load_words, store_words

_VALUES = 4 * WARP  # values of a tile: with fewer, programs would end faster than a GPU starts new ones
_SUMS = 32  # most sums of a thread in spmm_rows
_ENTRIES_AT_ONCE = 8  # entries whose bytes each thread of spmm_rows reads at once


def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> Tensor:
    slots = max(8 // bits, 2) if bits in QUANTIZED_BITS else 1
    constants, counts = _constants(rows, x.shape[1], bits, slots, buffer, payload_at, params_at)
    if params_at is not None and bits in QUANTIZED_BITS:
        given = x, rows, key or 0, buffer, payload_at, params_at, counts, rows.numel()
        launch(quantize_rows, counts.numel(), *given, **constants, CENTRES=key is None)
    else:
        launch(encode_words, counts.numel(), x, rows, buffer, payload_at, counts, rows.numel(), **constants)
    return counts.sum()


def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor, accumulate: bool
) -> Tensor:
    constants, counts = _constants(rows, out.shape[1], bits, max(8 // bits, 1), buffer, payload_at, params_at)
    kernel, places = decode_words, (payload_at,)
    if params_at is not None and bits in QUANTIZED_BITS:
        kernel, places = dequantize_rows, (payload_at, params_at)
    given = buffer, *places, out, rows, counts, rows.numel()
    launch(kernel, counts.numel(), *given, **constants, ACCUMULATE=accumulate)
    return counts.sum()


def spmm_rows(csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor) -> None:
    if out.numel() == 0 or csr.num_entries == 0:
        return
    tasks, width, slots = tasks_of(csr), out.shape[1], max(8 // bits, 1)
    count = lanes(width, bits, slots) if bits in QUANTIZED_BITS else width
    vector = min(_SUMS // slots, 128 // max(bits, 8))
    tile = padded(count) if interprets() else min(padded(count), 32 * vector)
    together = 64 if interprets() else 32 * vector // tile
    partial = tasks.scratch(width, out)
    launch(
        _spmm_rows, triton.cdiv(tasks.count, together) * triton.cdiv(count, tile),
        tasks.begin, tasks.length, tasks.row, csr.indices, csr.weight, buffer, payload_at, params_at, out, partial,
        tasks.count, tasks.parts,
        WIDTH=width, BITS=bits, SLOTS=slots, STRIDE=last_stride(width, bits), LANES=count,
        ALIGNMENT=alignment_of(payload_at, buffer),
        PARAMS_ALIGNMENT=1 if params_at is None else alignment_of(params_at, buffer),
        TASKS=together, TILE=tile, VECTOR=vector, AT_ONCE=2 if interprets() else _ENTRIES_AT_ONCE, num_warps=1,
    )  # fmt: skip
    join(tasks, partial, True, out)


def _constants(
    rows: Tensor, width: int, bits: int, slots: int, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> tuple[dict[str, int], Tensor]:
    """The constants of kernels for rows of ``bits``, and (programs,) int32 memory for counts. slots: columns of a lane."""
    count = lanes(width, bits, slots) if bits in QUANTIZED_BITS else width
    wide = padded(count)
    together = rows_of_tile(rows.numel(), wide * slots, _VALUES)
    constants = {"WIDTH": width, "ROWS": together, "PADDED": wide, "ALIGNMENT": alignment_of(payload_at, buffer)}
    if params_at is not None and bits in QUANTIZED_BITS:
        constants |= {"BITS": bits, "SLOTS": slots, "STRIDE": last_stride(width, bits), "LANES": count}
        constants |= {"PARAMS_ALIGNMENT": alignment_of(params_at, buffer)}
    else:
        constants |= {"BYTES": bits // 8}
    counts = torch.empty(triton.cdiv(rows.numel(), together), dtype=torch.int32, device=rows.device)
    return constants | {"num_warps": warps(together * wide * slots)}, counts


LARGEST = tl.constexpr(float(packing.LARGEST))
SMALLEST_SCALE = tl.constexpr(float(packing.SMALLEST_SCALE))
FRACTION_BITS = tl.constexpr(packing.FRACTION_BITS)
ONE = tl.constexpr(float(2**packing.FRACTION_BITS))
HALF = tl.constexpr(packing.HALF)
GROUP = tl.constexpr(16)
_NAN_PARAMS = tl.constexpr(int(packing.NAN) << 16 | int(packing.NAN))
INFINITY = tl.constexpr(0x7F800000)
_MINUS_INFINITY = tl.constexpr(0xFF800000 - 2**32 ^ 0x7FFFFFFF)  # ordered() of -infinity


def lanes(width: int, bits: int, slots: int) -> int:
    """Number of lanes of a row of ``width`` columns: the bytes of its payload, or its pairs of columns for 2 slots of 8 bits."""
    if bits * slots > 8:
        return width // 32 * 16 + min(width % 32, 16)
    return packing.payload_bytes(width, bits)


def last_stride(width: int, bits: int) -> int:
    """Distance in columns of two slots of a lane in a row's last block: 16, as in all other blocks, unless it is shorter."""
    rest = width % (128 // bits)
    return 16 if bits >= 8 or rest == 0 else (rest * bits + 7) // 8


@triton.jit
def column_of(lane, slot, WIDTH: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr):
    """The column whose code is in this slot of each lane; columns from WIDTH on do not exist. STRIDE: :func:`last_stride`."""
    first = lane // GROUP * (GROUP * SLOTS)
    if STRIDE == GROUP:
        return first + slot * GROUP + lane % GROUP
    return first + slot * tl.where(first + GROUP * SLOTS > WIDTH, STRIDE, GROUP) + lane % GROUP


@triton.jit
def ordered(pattern):
    """Integers in the order of floats, from int32 bits of the floats, with NaNs beyond both infinities; also its own inverse."""
    return pattern ^ ((pattern >> 31) & 0x7FFFFFFF)


@triton.jit
def upper_half(pattern):
    return (pattern & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _scale_of(low, high, STEPS: tl.constexpr):
    """The smallest bfloat16 of which STEPS steps reach from low to high, at least the smallest scale; 0 if high <= low."""
    scale = tl.maximum(tl.div_rn(high - low, tl.full(low.shape, STEPS, tl.float32)), SMALLEST_SCALE)
    return tl.where(high > low, upper_half(scale.to(tl.uint32, bitcast=True) + 0xFFFF), 0.0)


@triton.jit
def _grid_of(low, high, BITS: tl.constexpr, CENTRES: tl.constexpr):
    """Zero-points and scales, float32 numbers that bfloat16 can hold, of rows whose values range from ``low`` to ``high``."""
    low = tl.minimum(tl.maximum(low, -LARGEST), LARGEST) + 0.0  # -0 becomes 0
    high = tl.minimum(tl.maximum(high, -LARGEST), LARGEST)
    if CENTRES:
        scale = _scale_of(low, high, 1 << BITS)
        pattern = (low + scale * 0.5).to(tl.uint32, bitcast=True)
        return upper_half(pattern + 0x7FFF + ((pattern >> 16) & 1)), scale  # ties to even
    pattern = low.to(tl.uint32, bitcast=True)
    zero = upper_half(tl.where(low < 0, pattern + 0xFFFF, pattern))  # towards -infinity
    return zero, _scale_of(zero, high, (1 << BITS) - 1)


@triton.jit
def _measure(
    values, valid,
    WIDTH: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr, CENTRES: tl.constexpr, ALL_VALID: tl.constexpr,
):  # fmt: skip
    """Each row's zero-point and scale, and whether all its values are finite, from the (rows, lanes) values of each slot."""
    low, high = values[0], values[0]
    if not ALL_VALID:
        low, high = tl.where(valid[0], low, float("inf")), tl.where(valid[0], high, float("-inf"))
    for slot in tl.static_range(1, SLOTS):
        less, more = values[slot], values[slot]
        if not ALL_VALID:
            less, more = tl.where(valid[slot], less, float("inf")), tl.where(valid[slot], more, float("-inf"))
        low = tl.minimum(low, less, propagate_nan=tl.PropagateNan.ALL)
        high = tl.maximum(high, more, propagate_nan=tl.PropagateNan.ALL)
    # Compared as integers: a NaN is at an end of the order, and no minimum depends on the order of its operands.
    least = tl.min(ordered(low.to(tl.int32, bitcast=True)), axis=1)
    most = tl.max(ordered(high.to(tl.int32, bitcast=True)), axis=1)
    finite = (least > _MINUS_INFINITY) & (most < INFINITY)
    if WIDTH == 0:
        least, most, finite = tl.zeros_like(least), tl.zeros_like(most), finite | True
    low = ordered(tl.where(finite, least, 0)).to(tl.float32, bitcast=True)
    high = ordered(tl.where(finite, most, 0)).to(tl.float32, bitcast=True)
    zero, scale = _grid_of(low, high, BITS, CENTRES)
    return zero, scale, finite


@triton.jit
def _codes(
    values, columns, lane, zero, scale, low, high,
    BITS: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr, CENTRES: tl.constexpr,
):  # fmt: skip
    """The uint32 code of each value, slot by slot. low, high: halves of the rows' hashes.

    Codes of a row that is not finite have no meaning.
    """
    zero, low, high = zero[:, None], low[:, None], high[:, None]
    per_step = tl.div_rn(tl.where(scale > 0, ONE, 0.0), tl.where(scale > 0, scale, 1.0))[:, None]
    codes = ()
    for slot in tl.static_range(SLOTS):
        steps = tl.minimum(tl.maximum((values[slot] - zero) * per_step, 0.0), ((1 << BITS) - 1) * ONE)
        code = steps.to(tl.int32).to(tl.uint32, bitcast=True)
        if CENTRES:
            code += HALF
        elif STRIDE == GROUP:
            if slot % 2 == 0:  # one draw for this slot and the next, whose columns are 16 further on
                counter = lane // GROUP * (GROUP * SLOTS // 2) + slot * (GROUP // 2) + lane % GROUP
                random = keyed.draw(low, high, counter)
                code += ((random << 1) & 0x1FFFF) | 1
            else:
                code += (random >> 15) | 1
        else:
            counter = columns[slot] // (2 * GROUP) * GROUP + columns[slot] % GROUP
            random = keyed.draw(low, high, counter) >> (columns[slot] // GROUP % 2 * GROUP).to(tl.uint32)
            code += ((random & 0xFFFF) << 1) | 1
        codes = codes + (code >> FRACTION_BITS,)
    return codes


@triton.jit(do_not_specialize=["count", "key"])
def quantize_rows(
    x, rows, key: tl.uint64, buffer, payload_at, params_at, nonfinite, count,
    WIDTH: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr, CENTRES: tl.constexpr,
    ALIGNMENT: tl.constexpr, PARAMS_ALIGNMENT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Encode ROWS rows of ``x``: write payloads and parameters to ``buffer``, and the number of rows not finite to
    ``nonfinite[program]``.

    LANES: lanes of a row. PADDED: lanes of a tile, a power of two. ALIGNMENT: alignment of all payloads in bytes.
    PARAMS_ALIGNMENT: alignment of all parameters in bytes.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = i < count
    number = tl.load(rows + i, mask=here, other=0)
    to = buffer + tl.multiple_of(tl.load(payload_at + i, mask=here, other=0), ALIGNMENT)[:, None]
    params_to = buffer + tl.multiple_of(tl.load(params_at + i, mask=here, other=0), PARAMS_ALIGNMENT)
    lane = tl.arange(0, PADDED)[None, :]
    ALL_VALID: tl.constexpr = PADDED * SLOTS == WIDTH
    start = x + (number * WIDTH)[:, None]
    columns, values, valid = (), (), ()
    for slot in tl.static_range(SLOTS):
        column = column_of(lane, slot, WIDTH, SLOTS, STRIDE)
        exists = (lane < LANES) & (column < WIDTH)
        columns = columns + (column,)
        value = tl.load(start + column) if ALL_VALID else tl.load(start + column, mask=exists, other=0.0)
        values = values + (value,)
        valid = valid + (exists,)
    zero, scale, finite = _measure(values, valid, WIDTH, BITS, SLOTS, CENTRES, ALL_VALID)
    codes = _codes(values, columns, lane, zero, scale, *keyed.row_hash(key, number), BITS, SLOTS, STRIDE, CENTRES)
    merged = tl.zeros((ROWS, PADDED), tl.uint32)
    for slot in tl.static_range(SLOTS):
        if BITS == 8:
            code = tl.where(finite[:, None], codes[slot], 0)
            tl.store(to + columns[slot], code.to(tl.uint8), mask=here[:, None] & valid[slot])
        elif ALL_VALID:
            merged |= codes[slot] << slot * BITS
        else:
            merged |= tl.where(valid[slot], codes[slot] << slot * BITS, 0)
    if BITS != 8:
        merged = tl.where(finite[:, None], merged, 0)
        tl.store(to + lane, merged.to(tl.uint8), mask=here[:, None] & (lane < LANES))
    params = (zero.to(tl.uint32, bitcast=True) >> 16) | scale.to(tl.uint32, bitcast=True)
    params = tl.where(finite, params, _NAN_PARAMS)
    store_words(params_to, 0, params, here, 4, PARAMS_ALIGNMENT)
    tl.store(nonfinite + tl.program_id(0), tl.sum((here & ~finite).to(tl.int32), axis=0))


@triton.jit
def grid_in(params):
    """float32 zero-points and scales, from the uint32 parameters that :func:`quantize_rows` has written."""
    return (params << 16).to(tl.float32, bitcast=True), upper_half(params)


@triton.jit
def value_of(codes, slot: tl.constexpr, zero, scale, BITS: tl.constexpr):
    """The values of the codes in one slot of bytes (int32)."""
    return zero + ((codes >> slot * BITS) & ((1 << BITS) - 1)).to(tl.float32) * scale


@triton.jit(do_not_specialize=["count"])
def dequantize_rows(
    buffer, payload_at, params_at, out, rows, nonfinite, count,
    WIDTH: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr, ACCUMULATE: tl.constexpr,
    ALIGNMENT: tl.constexpr, PARAMS_ALIGNMENT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Decode ROWS rows of ``buffer`` to rows of ``out``, or add them; see :func:`quantize_rows`."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = i < count
    start = buffer + tl.multiple_of(tl.load(payload_at + i, mask=here, other=0), ALIGNMENT)[:, None]
    params_start = buffer + tl.multiple_of(tl.load(params_at + i, mask=here, other=0), PARAMS_ALIGNMENT)
    to = out + (tl.load(rows + i, mask=here, other=0) * WIDTH)[:, None]
    lane = tl.arange(0, PADDED)[None, :]
    # A thread loads exactly the codes of the four lanes that it stores, so that no value moves between threads.
    by_four = tl.max_contiguous(tl.arange(0, PADDED), 4)[None, :]
    there = here[:, None] & (lane < LANES)
    params = load_words(params_start, 0, here, 4, PARAMS_ALIGNMENT)
    codes = tl.load(start + by_four, mask=there, other=0).to(tl.int32)
    before = ()
    if ACCUMULATE:  # all reads start before the first value is used
        for slot in tl.static_range(SLOTS):
            column = column_of(lane, slot, WIDTH, SLOTS, STRIDE)
            before = before + (tl.load(to + column, mask=there & (column < WIDTH), other=0.0),)
    zero, scale = grid_in(params[:, None])
    for slot in tl.static_range(SLOTS):
        column = column_of(lane, slot, WIDTH, SLOTS, STRIDE)
        mask = there & (column < WIDTH)
        value = value_of(codes, slot, zero, scale, BITS)
        if ACCUMULATE:
            value = before[slot] + value
        tl.store(to + column, value, mask=mask)
    bad = ((params & 0x7F80) == 0x7F80) | ((params & 0x7F800000) == 0x7F800000)
    tl.store(nonfinite + tl.program_id(0), tl.sum((here & bad).to(tl.int32), axis=0))


@triton.jit
def _add_entries(
    totals, first, within, indices, weight, buffer, payload_at, params_at, lane, exists,
    BITS: tl.constexpr, SLOTS: tl.constexpr, ALIGNMENT: tl.constexpr, PARAMS_ALIGNMENT: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
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
def _spmm_rows(
    begins, lengths, rows, indices, weight, buffer, payload_at, params_at, out, partial, count, parts,
    WIDTH: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr, LANES: tl.constexpr,
    ALIGNMENT: tl.constexpr, PARAMS_ALIGNMENT: tl.constexpr, TASKS: tl.constexpr, TILE: tl.constexpr,
    VECTOR: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Compute TASKS tasks for TILE of a row's LANES; add them to ``out`` (R, WIDTH), or write parts of hubs to ``partial``."""
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
