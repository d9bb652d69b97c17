"""See :mod:`hpcgnn.kernels.activation`: one pass forward, one backward, and one over the sums of segments of rows.

The gradients of weight and bias are sums over all rows. Each program sums one segment of rows, and the number of segments depends
on the number of rows alone, so the bits are the same in each run.
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.activation import DropoutMask, Norm, Shift, bytes_of_bits
from hpcgnn.kernels.triton import keyed
from hpcgnn.kernels.triton.launch import WARP, launch, padded, rows_of_tile, warps

_ROWS_OF_A_SEGMENT = 64  # a segment has at least these rows, and more where there are _MOST_SEGMENTS segments
_MOST_SEGMENTS = 4096
_SEGMENTS_TOGETHER, _COLUMNS_TOGETHER = 256, 8  # size of a tile in the kernel that adds segments


def activate(x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
    rows, width = x.shape
    if isinstance(norm, Norm):
        kept, eps = x.new_empty(rows, 2), norm.eps  # mean and 1/std
    else:
        kept, eps = torch.empty(rows, bytes_of_bits(width), dtype=torch.uint8, device=x.device), None
    _launch_forward(x.contiguous(), kept, _tensors(norm, mask), out, RELU=True, EPS=eps, **_of_mask(mask))
    return kept


def dropout(x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
    tensors = None, None, ids, key
    _launch_forward(x, None, tensors, out, RELU=False, EPS=None, THRESHOLD=threshold, SCALE=scale)


def _launch_forward(x: Tensor, kept: Tensor | None, tensors: tuple[Any, ...], out: Tensor, **constants: Any) -> None:
    rows, width = x.shape
    wide = max(padded(width), 8)  # columns with bits in one byte
    together = rows_of_tile(rows, wide, WARP)
    launch(
        _forward, triton.cdiv(rows, together) if width else 0, x, kept, *tensors, out, rows,
        **constants, WIDTH=width, ROWS=together, PADDED=wide, num_warps=warps(together * wide),
    )  # fmt: skip


def activate_backward(
    dy: Tensor, x: Tensor, statistics: Tensor | None, norm: Norm, mask: DropoutMask | None, dx: Tensor, dweight: Tensor,
    dbias: Tensor,
) -> None:  # fmt: skip
    rows, width = x.shape
    if width == 0:
        return
    segments = min(max(rows // _ROWS_OF_A_SEGMENT, 1), _MOST_SEGMENTS)
    sums = x.new_empty(2, segments, width)
    wide = padded(width)
    together = rows_of_tile(rows, wide, WARP // 2)  # x, dy and two sums are in registers at the same time
    launch(
        _backward, segments, dy.contiguous(), x.contiguous(), statistics, *_tensors(norm, mask), dx, sums, rows, segments,
        **_of_mask(mask), WIDTH=width, ROWS=together, PADDED=wide, num_warps=warps(2 * together * wide),
    )  # fmt: skip
    launch(
        _add_segments, triton.cdiv(width, _COLUMNS_TOGETHER), sums, dweight, dbias, segments, width,
        SEGMENTS=_SEGMENTS_TOGETHER, COLUMNS=_COLUMNS_TOGETHER,
    )  # fmt: skip


def relu_backward(dy: Tensor, positive: Tensor, scale: float, dx: Tensor, sums: Tensor | None) -> None:
    rows, width = dy.shape
    wide = padded(width)
    together = rows_of_tile(rows, wide, WARP)
    launch(
        _relu_backward, triton.cdiv(rows, together) if width else 0, dy.contiguous(), positive, dx, rows,
        SCALE=scale, WIDTH=width, ROWS=together, PADDED=wide, num_warps=warps(together * wide),
    )  # fmt: skip
    if sums is not None:
        column_sums(dx, sums)


def column_sums(x: Tensor, sums: Tensor) -> None:
    torch.sum(x, 0, dtype=torch.float64, out=sums)


def _tensors(norm: Norm | Shift | None, mask: DropoutMask | None) -> tuple[Tensor | int | None, ...]:
    """Arguments of both kernels: weight, bias, ids and key."""
    weight = norm.weight.contiguous() if isinstance(norm, Norm) else None
    bias = None if norm is None else norm.bias.contiguous()
    return weight, bias, None if mask is None else mask.ids.contiguous(), 0 if mask is None else mask.key


def _of_mask(mask: DropoutMask | None) -> dict[str, Any]:
    """Constants for which both kernels are compiled."""
    threshold, scale = (None, None) if mask is None else (mask.threshold, mask.scale)
    return {"THRESHOLD": threshold, "SCALE": scale}


@triton.jit
def _dropped(values, key, ids, i, count, column, THRESHOLD: tl.constexpr, SCALE: tl.constexpr):
    """``values`` times dropout's scale, 0 where dropout drops them."""
    if THRESHOLD is not None:
        low, high = keyed.row_hash(key, tl.load(ids + i, mask=i < count, other=0))
        stays = keyed.draw(low[:, None], high[:, None], column) >= THRESHOLD
        values = tl.where(stays, values * SCALE, 0.0)
    return values


@triton.jit(do_not_specialize=["key", "count"])
def _forward(
    x, kept, weight, bias, ids, key: tl.uint64, out, count,
    RELU: tl.constexpr, EPS: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)[None, :]
    exists = column < WIDTH
    mask = (i < count)[:, None] & exists
    at = (i * WIDTH)[:, None] + column
    y = tl.load(x + at, mask=mask, other=0.0)
    if EPS is not None:
        # The mean is the first value plus the mean distance to it, so that the variance of equal values is exactly 0.
        first = tl.load(x + i * WIDTH, mask=i < count, other=0.0)
        mean = first + tl.sum(tl.where(exists, y - first[:, None], 0.0), axis=1) / WIDTH
        y = y - mean[:, None]
        variance = tl.sum(tl.where(exists, y * y, 0.0), axis=1) / WIDTH
        per_std = 1.0 / tl.sqrt(variance + EPS)
        tl.store(kept + 2 * i, mean, mask=i < count)
        tl.store(kept + 2 * i + 1, per_std, mask=i < count)
        gamma = tl.load(weight + column, mask=exists, other=0.0)
        y = y * per_std[:, None] * gamma
    if bias is not None:
        y += tl.load(bias + column, mask=exists, other=0.0)
    values = _dropped(y, key, ids, i, count, column, THRESHOLD, SCALE)
    if RELU:
        values = tl.where(y <= 0, 0.0, values)  # a NaN remains
        if EPS is None:
            bits = tl.where(values <= 0, 0, 1) << (column % 8)
            bits = tl.sum(tl.reshape(bits, (ROWS, PADDED // 8, 8)), axis=2)
            byte, row_bytes = tl.arange(0, PADDED // 8)[None, :], (WIDTH + 7) // 8
            exists = (i < count)[:, None] & (byte < row_bytes)
            tl.store(kept + (i * row_bytes)[:, None] + byte, bits.to(tl.uint8), mask=exists)
    tl.store(out + at, values, mask=mask)


@triton.jit(do_not_specialize=["count"])
def _relu_backward(
    dy, positive, dx, count, SCALE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)[None, :]
    mask = (i < count)[:, None] & (column < WIDTH)
    at = (i * WIDTH)[:, None] + column
    bits = tl.load(positive + (i * ((WIDTH + 7) // 8))[:, None] + column // 8, mask=mask, other=0).to(tl.int32)
    values = tl.load(dy + at, mask=mask, other=0.0) * SCALE
    tl.store(dx + at, tl.where(((bits >> (column % 8)) & 1) == 1, values, 0.0), mask=mask)


@triton.jit(do_not_specialize=["key", "count", "segments"])
def _backward(
    dy, x, statistics, weight, bias, ids, key: tl.uint64, dx, sums, count, segments,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write ``dx`` of one segment of rows, ROWS at a time, and its sums for weight and bias to ``sums`` (2, segments, WIDTH)."""
    segment = tl.program_id(0).to(tl.int64)
    end = count * (segment + 1) // segments
    column = tl.arange(0, PADDED)[None, :]
    exists = column < WIDTH
    gamma = tl.load(weight + column, mask=exists, other=0.0)
    beta = tl.load(bias + column, mask=exists, other=0.0)
    to_weight = tl.zeros((ROWS, PADDED), dx.dtype.element_ty)
    to_bias = tl.zeros((ROWS, PADDED), dx.dtype.element_ty)
    for begin in range(count * segment // segments, end, ROWS):
        i = begin + tl.arange(0, ROWS)
        mask = (i < end)[:, None] & exists
        at = (i * WIDTH)[:, None] + column
        value = tl.load(x + at, mask=mask, other=0.0)
        gradient = tl.load(dy + at, mask=mask, other=0.0)
        gradient = _dropped(gradient, key, ids, i, end, column, THRESHOLD, SCALE)
        mean = tl.load(statistics + 2 * i, mask=i < end, other=0.0)[:, None]
        per_std = tl.load(statistics + 2 * i + 1, mask=i < end, other=0.0)[:, None]
        unit = tl.where(mask, (value - mean) * per_std, 0.0)
        gradient = tl.where(unit * gamma + beta <= 0, 0.0, gradient)
        to_weight += gradient * unit
        to_bias += gradient
        gradient *= gamma
        mean_gradient = tl.sum(gradient, axis=1)[:, None] / WIDTH
        gradient -= mean_gradient + unit * (tl.sum(gradient * unit, axis=1)[:, None] / WIDTH)
        gradient *= per_std
        tl.store(dx + at, gradient, mask=mask)
    at = tl.arange(0, PADDED)
    tl.store(sums + segment * WIDTH + at, tl.sum(to_weight, axis=0), mask=at < WIDTH)
    tl.store(sums + (segments + segment) * WIDTH + at, tl.sum(to_bias, axis=0), mask=at < WIDTH)


@triton.jit(do_not_specialize=["segments"])
def _add_segments(sums, dweight, dbias, segments, width, SEGMENTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums over segments, always in the same order, to ``dweight`` and ``dbias`` (width,)."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < width
    to_weight = tl.zeros((SEGMENTS, COLUMNS), sums.dtype.element_ty)
    to_bias = tl.zeros((SEGMENTS, COLUMNS), sums.dtype.element_ty)
    for begin in range(0, segments, SEGMENTS):
        segment = begin + tl.arange(0, SEGMENTS)
        mask = (segment < segments)[:, None] & exists[None, :]
        at = segment.to(tl.int64)[:, None] * width + column[None, :]
        to_weight += tl.load(sums + at, mask=mask, other=0.0)
        to_bias += tl.load(sums + segments.to(tl.int64) * width + at, mask=mask, other=0.0)
    tl.store(dweight + column, tl.sum(to_weight, axis=0), mask=exists)
    tl.store(dbias + column, tl.sum(to_bias, axis=0), mask=exists)
