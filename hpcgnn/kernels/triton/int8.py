"""See :mod:`hpcgnn.kernels.int8`: the codes, scales and results of :mod:`hpcgnn.kernels.int8`, bit for bit.

Rows are quantized in a separate pass, because a row's scale must be known before its codes. ``tl.dot`` then adds products of
codes in int32, and the sums become float32 in registers. ``torch._int_mm`` (cuBLASLt) would write the sums to memory for another
kernel, and it takes only multiples of 8 columns. On an H100, it takes 0.24 ms for 524288x256x256 without the scales, and this
kernel 0.29 ms with them. If the bytes of a row are no multiple of 16, a thread reads fewer bytes at once.

Two columns, 16 apart, share a random draw, so the kernels that quantize work on such pairs
(:mod:`hpcgnn.kernels.triton.messages`).
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.int8 import ROWS_OF_A_BLOCK, ROWS_OF_A_SEGMENT, Int8Rows
from hpcgnn.kernels.triton import keyed, messages
from hpcgnn.kernels.triton.edges import launch_dots
from hpcgnn.kernels.triton.launch import WARP, interprets, launch, padded, rows_of_tile, warps
from hpcgnn.kernels.triton.messages import column_of, lanes
from hpcgnn.kernels.triton.tasks import add_parts, columns_of_a_program, vector

__all__ = ["dot_products", "gathers_bytes", "product", "quantize_rows", "sddmm", "weight_gradient"]

_TOP = tl.constexpr(127.0)
_VALUES = 4 * WARP  # values of a tile of rows to quantize, as for messages
_LONG, _SHORT, _LEAST = 128, 64, 16  # sides of a product's tile: two long ones would need too many registers
_DEPTH = 64  # terms that such a tile adds at a time
# The same for the gradient of a weight, and the bytes of its workspace. With 64 and 64 MiB, it took an eighth longer on an H100.
_ROWS_AT_ONCE, _WORKSPACE = 128, 1 << 28


def dot_products() -> bool:
    """Return whether the current GPU has special instructions that multiply 8-bit integers, and Triton compiles ``tl.dot`` to
    them.

    This holds for NVIDIA's GPUs from compute capability 8.0 on (older ones have such instructions, but Triton compiles no
    ``tl.dot`` for them), and for AMD's matrix cores from MI100 (gfx908) and RDNA 3 (gfx11) on. It does not hold without a GPU.
    """
    if not torch.cuda.is_available():
        return False
    if torch.version.hip is None:
        return torch.cuda.get_device_capability() >= (8, 0)
    return _has_matrix_cores(torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName)


def gathers_bytes() -> bool:
    """Return whether there is a GPU. On an H100, such sums took 0.87 to 0.97 of the time of those of float32."""
    return torch.cuda.is_available()


def _has_matrix_cores(name: str) -> bool:
    """Return whether an AMD GPU has matrix cores, from its name, such as ``gfx90a:sramecc+:xnack-``."""
    digits = name.partition(":")[0].removeprefix("gfx")
    family, chip = int(digits[:-2]), int(digits[-2:], 16)
    return family > 10 or (family == 9 and chip >= 0x08)


def _check_instructions(x: Tensor) -> None:
    """Raise ValueError where ``x`` lies on a GPU for which there is no ``tl.dot`` of 8-bit integers."""
    if x.is_cuda and not dot_products():
        raise ValueError(
            "products of 8-bit integers need a GPU of NVIDIA from compute capability 8.0 on, or one of AMD from MI100 on: "
            "use float32"
        )


def quantize_rows(x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
    rows, width = x.shape
    wide = padded(lanes(width, 8, 2))
    together = rows_of_tile(rows, 2 * wide, _VALUES)
    units = vector(width, 1)
    launch(
        _quantize, triton.cdiv(rows, together), x, factor, key or 0, codes, scale, rows, width // units,
        VECTOR=units, NEAREST=key is None, ROWS=together, PADDED=wide, num_warps=warps(2 * together * wide),
    )  # fmt: skip


def product(
    codes: Tensor, scale: Tensor, weight: Tensor, weight_key: int | None, bias: Tensor | None, accumulate: bool,
    out: Tensor,
) -> None:  # fmt: skip
    _check_instructions(codes)
    depth, width = weight.shape
    columns, column_scale = codes.new_empty(width, depth), scale.new_empty(width)
    quantize_rows(weight.T.contiguous(), None, weight_key, columns, column_scale)
    side, units, out_units = _side(width, _SHORT), vector(depth, 1), vector(width, 4)
    launch(
        _multiply, triton.cdiv(out.shape[0], _LONG) * triton.cdiv(width, side),
        codes, scale, columns, column_scale, bias, out, out.shape[0], depth // units, width // out_units,
        VECTOR=units, OUT_VECTOR=out_units, ACCUMULATE=accumulate,
        ROWS=_LONG, COLUMNS=side, DEPTH=_DEPTH, num_warps=_warps(_LONG, side),
    )  # fmt: skip


def weight_gradient(
    codes: Tensor, scale: Tensor, dy: Tensor, dy_scale: Tensor | None, key: int | None, dweight: Tensor,
    sums: Tensor | None,
) -> None:  # fmt: skip
    # The sums of segments go to a workspace, from which one kernel adds them in order, without atomics. With the codes of dy it
    # takes at most _WORKSPACE, or the bytes of one segment if these are more; what does not fit is computed in several turns.
    _check_instructions(codes)
    dy = dy if dy_scale is None else Int8Rows(dy, dy_scale).float()
    (rows, depth), width = codes.shape, dy.shape[1]
    if sums is not None:
        torch.sum(dy, 0, out=sums)
    dweight.zero_()
    if codes.numel() == 0 or dy.numel() == 0:
        return
    segments, blocks_of_each = triton.cdiv(rows, ROWS_OF_A_SEGMENT), ROWS_OF_A_SEGMENT // ROWS_OF_A_BLOCK
    bytes_of_each = width * (4 * depth + ROWS_OF_A_SEGMENT + 4 * blocks_of_each)
    together = min(max(1, _WORKSPACE // bytes_of_each), segments)
    partial = scale.new_empty(together, depth, width)
    dy_codes = codes.new_empty(together * blocks_of_each, width, ROWS_OF_A_BLOCK)
    dy_scale = scale.new_empty(together * blocks_of_each, width)
    sides, units, dy_units = (_side(depth, _SHORT), _side(width, _LONG)), vector(depth, 1), vector(width, 4)
    block = columns_of_a_program(dweight.numel(), 4)
    for first in range(0, segments, together):
        begin, count = first * ROWS_OF_A_SEGMENT, min(together, segments - first)
        blocks = triton.cdiv(min(rows - begin, count * ROWS_OF_A_SEGMENT), ROWS_OF_A_BLOCK)
        launch(
            _quantize_columns, blocks * triton.cdiv(width, 2 * messages.GROUP.value),
            dy, scale, key or 0, dy_codes, dy_scale, begin, rows, width // dy_units,
            VECTOR=dy_units, NEAREST=key is None, ROWS=ROWS_OF_A_BLOCK, num_warps=8,
        )  # fmt: skip
        launch(
            _contract, count * triton.cdiv(depth, sides[0]) * triton.cdiv(width, sides[1]),
            codes, dy_codes, dy_scale, partial, begin, rows, blocks, depth // units, width // dy_units,
            VECTOR=units, DY_VECTOR=dy_units, ROWS=ROWS_OF_A_BLOCK, BLOCKS=blocks_of_each, DEPTH=_ROWS_AT_ONCE,
            COLUMNS=sides[0], DY_COLUMNS=sides[1], num_warps=_warps(*sides),
        )  # fmt: skip
        launch(
            add_parts, triton.cdiv(dweight.numel(), block), partial, None, None, dweight, count, dweight.numel(),
            BLOCK=block, ACCUMULATE=True, BY_HUB=False, num_warps=1,
        )  # fmt: skip


def _side(width: int, most: int) -> int:
    """The side of a product's tile for ``width`` columns."""
    return max(_LEAST, min(most, padded(width)))


def _warps(rows: int, columns: int) -> int:
    """The number of warps of a program with a tile of this size: a thread then has at most 32 sums."""
    return 8 if rows * columns > _LONG * _SHORT // 2 else 4


@triton.jit
def _magnitude(values):
    """The magnitudes of values as int32 bits: they have the same order, and a NaN is larger than infinity."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _grid(most):
    """The scale of rows with these largest magnitudes; 2**17 divided by the scale; and whether all values of a row are finite."""
    finite = most < messages.INFINITY
    largest = tl.minimum(tl.where(finite, most, 0).to(tl.float32, bitcast=True), messages.LARGEST)
    wanted = tl.maximum(tl.div_rn(largest, tl.full(largest.shape, _TOP, tl.float32)), messages.SMALLEST_SCALE)
    up = messages.upper_half(wanted.to(tl.uint32, bitcast=True) + 0xFFFF)  # a number that bfloat16 can hold
    scale = tl.where(largest > 0, up, 0.0)
    per_step = tl.div_rn(tl.where(largest > 0, messages.ONE, 0.0), tl.where(largest > 0, scale, 1.0))
    return tl.where(finite, scale, float("nan")), per_step, finite


@triton.jit
def _noise(key, number, pair, NEAREST: tl.constexpr):
    """int32 noise, in units of 2**-17 of a step, for both columns of each pair: 16 random bits plus a half, or half a step."""
    if NEAREST:
        first = tl.full((1, 1), messages.HALF, tl.int32)
        second = first
    else:
        low, high = keyed.row_hash(key, number)
        random = keyed.draw(low, high, pair)
        first = (((random << 1) & 0x1FFFF) | 1).to(tl.int32)
        second = ((random >> 15) | 1).to(tl.int32)
    return first, second


@triton.jit
def _codes(values, per_step, finite, noise):
    steps = tl.where(finite, values, 0.0) * per_step
    steps = tl.minimum(tl.maximum(steps, -_TOP * messages.ONE), _TOP * messages.ONE).to(tl.int32)
    return tl.where(finite, (steps + noise) >> messages.FRACTION_BITS, 0).to(tl.int8)


@triton.jit(do_not_specialize=["key", "count"])
def _quantize(
    x, factor, key: tl.uint64, codes, scale, count, vectors,
    VECTOR: tl.constexpr, NEAREST: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Quantize ROWS rows of ``x``, times their factors, to ``codes`` and ``scale``. PADDED: pairs of columns, a power of two."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, PADDED)[None, :]
    first, second = column_of(pair, 0, 0, 2, messages.GROUP), column_of(pair, 1, 0, 2, messages.GROUP)
    here, width, at = number < count, vectors * VECTOR, number * vectors * VECTOR
    left = tl.load(x + at + first, mask=here & (first < width), other=0.0)
    right = tl.load(x + at + second, mask=here & (second < width), other=0.0)
    if factor is not None:
        by = tl.load(factor + number, mask=here, other=0.0)
        left *= by
        right *= by
    most = tl.max(tl.maximum(_magnitude(left), _magnitude(right)), axis=1, keep_dims=True)
    of_row, per_step, finite = _grid(most)
    of_first, of_second = _noise(key, number, pair, NEAREST)
    tl.store(codes + at + first, _codes(left, per_step, finite, of_first), mask=here & (first < width))
    tl.store(codes + at + second, _codes(right, per_step, finite, of_second), mask=here & (second < width))
    tl.store(scale + number, of_row, mask=here)


@triton.jit(do_not_specialize=["key", "begin", "count"])
def _quantize_columns(
    dy, scale, key: tl.uint64, codes, column_scale, begin, count, vectors,
    VECTOR: tl.constexpr, NEAREST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Quantize 32 columns of a block of ROWS rows of ``dy``, times their ``scale``, to ``codes`` (blocks, H, ROWS) and
    ``column_scale`` (blocks, H). Blocks begin at row ``begin``; rows from ``count`` on do not exist, and count as zeros."""
    width, tiles = vectors * VECTOR, tl.cdiv(vectors * VECTOR, 2 * messages.GROUP)
    block = (tl.program_id(0) // tiles).to(tl.int64)
    pair = (tl.program_id(0) % tiles) * messages.GROUP + tl.arange(0, messages.GROUP)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    number = begin + block * ROWS + row
    here = number < count
    by = tl.load(scale + number, mask=here, other=0.0)
    noise = _noise(key, number, pair, NEAREST)
    for slot in tl.static_range(2):
        column = column_of(pair, slot, 0, 2, messages.GROUP)
        values = tl.load(dy + number * vectors * VECTOR + column, mask=here & (column < width), other=0.0) * by
        of_column, per_step, finite = _grid(tl.max(_magnitude(values), axis=0, keep_dims=True))
        place = block * width + column
        tl.store(codes + place * ROWS + row, _codes(values, per_step, finite, noise[slot]), mask=column < width)
        tl.store(column_scale + place, of_column, mask=column < width)


@triton.jit(do_not_specialize=["count"])
def _multiply(
    codes, scale, columns, column_scale, bias, out, count, vectors, out_vectors,
    VECTOR: tl.constexpr, OUT_VECTOR: tl.constexpr, ACCUMULATE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write ROWS by COLUMNS of the product of ``codes`` (n, F) and the transposed ``columns`` (H, F) to ``out``, or add them."""
    depth, width = vectors * VECTOR, out_vectors * OUT_VECTOR
    tiles = tl.cdiv(width, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    term = tl.arange(0, DEPTH)
    left = codes + row * vectors * VECTOR + term[None, :]
    right = columns + column.to(tl.int64) * vectors * VECTOR + term[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    for first in range(0, depth, DEPTH):
        within = first + term < depth
        a = tl.load(left + first, mask=(row < count) & within[None, :], other=0)
        b = tl.load(right + first, mask=(column < width) & within[:, None], other=0)
        total = tl.dot(a, b, total, out_dtype=tl.int32)
    of_row = tl.load(scale + row, mask=row < count, other=0.0)
    of_column = tl.load(column_scale + column, mask=column < width, other=0.0)
    y = total.to(tl.float32) * (of_row * of_column)
    if bias is not None:
        y += tl.load(bias + column, mask=column < width, other=0.0)
    to, exists = out + row * out_vectors * OUT_VECTOR + column, (row < count) & (column < width)
    if ACCUMULATE:
        y = tl.load(to, mask=exists, other=0.0) + y
    tl.store(to, y, mask=exists)


@triton.jit(do_not_specialize=["begin", "count", "blocks"])
def _contract(
    codes, dy_codes, dy_scale, partial, begin, count, blocks, vectors, dy_vectors,
    VECTOR: tl.constexpr, DY_VECTOR: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
    DY_COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write COLUMNS by DY_COLUMNS of the sum of one segment, BLOCKS of the ``blocks`` from row ``begin`` on, to ``partial``.

    In ``dy_codes`` the rows of a block are contiguous, as tensor cores need the dimension over which they sum.
    """
    width, dy_width = vectors * VECTOR, dy_vectors * DY_VECTOR
    tiles, dy_tiles = tl.cdiv(width, COLUMNS), tl.cdiv(dy_width, DY_COLUMNS)
    segment = tl.program_id(0) // (tiles * dy_tiles)
    column = (tl.program_id(0) // dy_tiles % tiles) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    dy_column = (tl.program_id(0) % dy_tiles) * DY_COLUMNS + tl.arange(0, DY_COLUMNS)[None, :]
    term = tl.arange(0, DEPTH)
    of_segment = tl.zeros((COLUMNS, DY_COLUMNS), tl.float32)
    for block in range(segment * BLOCKS, tl.minimum(segment * BLOCKS + BLOCKS, blocks)):
        place = tl.cast(block, tl.int64) * dy_width + dy_column
        right = dy_codes + place * ROWS + term[:, None]
        total = tl.zeros((COLUMNS, DY_COLUMNS), tl.int32)
        for first in range(0, ROWS, DEPTH):
            row = begin + tl.cast(block, tl.int64) * ROWS + first + term[None, :]
            a = tl.load(codes + row * vectors * VECTOR + column, mask=(row < count) & (column < width), other=0)
            b = tl.load(right + first, mask=dy_column < dy_width, other=0)
            total = tl.dot(a, b, total, out_dtype=tl.int32)
        of_segment += total.to(tl.float32) * tl.load(dy_scale + place, mask=dy_column < dy_width, other=0.0)
    to = partial + (segment.to(tl.int64) * width + column) * dy_vectors * DY_VECTOR + dy_column
    tl.store(to, of_segment, mask=(column < width) & (dy_column < dy_width))


_BYTES = 8192  # bytes of each operand that a program of 128 lanes reads at once: four reads of 16 bytes by each lane
_INTERPRETED = 16  # an interpreted program takes this many times as much
_MOST_OF_A_HEAD = 256  # columns of a tile of products


def sddmm(csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
    if out.numel() == 0:
        return
    values = _BYTES * (_INTERPRETED if interprets() else 1)
    columns = min(_MOST_OF_A_HEAD, triton.next_power_of_2(max(1, a.shape[1] // heads)))
    launch_dots(_dot_codes, csr, (a, a_scale, b, b_scale), out, values, columns, COLUMNS=columns)


@triton.jit(do_not_specialize=["entries"])
def _dot_codes(
    entry_rows, indices, a, a_scale, b, b_scale, out, entries, heads, vectors,
    VECTOR: tl.constexpr, ENTRIES: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, tiles = vectors * VECTOR, tl.cdiv(heads, HEADS)
    entry = (tl.program_id(0) // tiles).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)[:, None, None]
    head = (tl.program_id(0) % tiles) * HEADS + tl.arange(0, HEADS)[None, :, None]
    column = tl.arange(0, COLUMNS)[None, None, :]
    exists = (entry < entries) & (head < heads)
    row = tl.load(entry_rows + entry, mask=entry < entries, other=0).to(tl.int64)
    source = tl.load(indices + entry, mask=entry < entries, other=0).to(tl.int64)
    of_a = tl.load(a_scale + row, mask=entry < entries, other=0.0)
    of_b = tl.load(b_scale + source, mask=entry < entries, other=0.0)
    left = a + row * heads * vectors * VECTOR + head * columns + column
    right = b + source * heads * vectors * VECTOR + head * columns + column
    total = tl.zeros((ENTRIES, HEADS, 1), tl.int32)
    for first in range(0, columns, COLUMNS):
        here = exists & (first + column < columns)
        one = tl.load(left + first, mask=here, other=0).to(tl.int32)
        other = tl.load(right + first, mask=here, other=0).to(tl.int32)
        total += tl.sum(one * other, 2, keep_dims=True)
    tl.store(out + entry * heads + head, total.to(tl.float32) * (of_a * of_b), mask=exists)
