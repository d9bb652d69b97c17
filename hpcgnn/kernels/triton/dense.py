"""See :mod:`hpcgnn.kernels.dense`: torch's products, by cuBLAS or hipBLASLt, which are tuned for each GPU.

Blocks of rows with a matrix each are one launch of a kernel here, because there may be hundreds, and to start a product takes
longer than a small product.

``bf16`` rounds the operands and adds in float32. On AMD's GPUs and on CPUs the library does not return these sums in float32.
There the rounded operands are converted back to float32 first: every product of two of them is exact in float32, so the result
is the same except for the order of sums, and no faster than ``float32``.
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.dense import DENSE
from hpcgnn.kernels.triton.launch import launch

_ROWS, _DEPTH, _COLUMNS = 64, 32, 64  # of a tile of a product
_MOST = 32768  # rows of a block whose gradient one program adds up; those of larger blocks are products of their own
_SIDE = 32  # rows and columns of a tile of a gradient


def arithmetics() -> tuple[str, ...]:
    has_tf32 = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return ("float32", "bf16", "tf32") if has_tf32 else ("float32", "bf16")


def product(x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str) -> None:
    if compute == "tf32":
        with _tf32():
            DENSE.reference.product(x, weight, bias, accumulate, out, "float32")
        return
    if compute == "float32" or not _adds_in_float32(x):
        DENSE.reference.product(_rounded(x, compute), _rounded(weight, compute), bias, accumulate, out, "float32")
        return
    halves = x.bfloat16(), weight.bfloat16()
    if accumulate:
        out += torch.mm(*halves, out_dtype=torch.float32)
    else:
        torch.mm(*halves, out_dtype=torch.float32, out=out)
    if bias is not None:
        out += bias  # not by addmm: only newer versions of torch take a float32 summand with bfloat16 factors there


def weight_gradient(x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
    if compute == "tf32":
        with _tf32():
            torch.mm(x.T, dy, out=dweight)
    elif compute == "float32" or not _adds_in_float32(x):
        torch.mm(_rounded(x, compute).T, _rounded(dy, compute), out=dweight)
    else:
        torch.mm(x.bfloat16().T, dy.bfloat16(), out_dtype=torch.float32, out=dweight)
    if sums is not None:
        torch.sum(dy, 0, out=sums)


@contextmanager
def _tf32() -> Iterator[None]:
    """Context in which float32 products round their operands to 10 bits of mantissa, for tensor cores, and add in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _adds_in_float32(x: Tensor) -> bool:
    """Return whether torch returns products of bfloat16 as float32 sums on the device of ``x``: on CUDA it does from torch 2.8
    on."""
    return x.is_cuda and torch.version.hip is None and "dtype" in torch.ops.aten.mm.overloads()


def _rounded(x: Tensor, compute: str) -> Tensor:
    """``x`` with the rounding of ``compute``, in its own type."""
    return x.bfloat16().float() if compute == "bf16" else x


def grouped_product(x: Tensor, weights: Tensor, sizes: Sequence[int], out: Tensor) -> None:
    if x.dtype != torch.float32:
        DENSE.reference.grouped_product(x, weights, sizes, out)
        return
    tiles, (_, parts, depth, width) = _tiles(tuple(sizes), _ROWS, x.device), weights.shape
    launch(
        _products, len(tiles) * parts * triton.cdiv(width, _COLUMNS), x, weights, out, tiles, parts, depth, width,
        *weights.stride(), ROWS=_ROWS, DEPTH=_DEPTH, COLUMNS=_COLUMNS,
    )  # fmt: skip


def grouped_gradient(x: Tensor, dy: Tensor, sizes: Sequence[int], dweights: Tensor) -> None:
    if x.dtype != torch.float32:
        DENSE.reference.grouped_gradient(x, dy, sizes, dweights)
        return
    dweights.zero_()
    for matrix, (begin, end) in enumerate(pairwise((0, *accumulate(sizes)))):
        if end - begin > _MOST:
            of_block = dweights[matrix : matrix + 1]
            DENSE.reference.grouped_gradient(x[begin:end], dy[begin:end], (end - begin,), of_block)
    tiles, (_, parts, depth, width) = _tiles(tuple(sizes), None, x.device), dweights.shape
    launch(
        _gradients, len(tiles) * parts * triton.cdiv(depth, _SIDE) * triton.cdiv(width, _SIDE),
        x, dy, dweights, tiles, parts, depth, width, ROWS=_ROWS, SIDE=_SIDE,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _tiles(sizes: tuple[int, ...], rows: int | None, device: torch.device) -> Tensor:
    """(tiles, 3) int32: the matrix, the first row, and the row after the last one, of tiles of at most ``rows`` rows. None: each
    block of at most :data:`_MOST` rows is one tile, and larger ones are none."""
    found = [
        (matrix, first, min(first + (rows or _MOST), end))
        for matrix, (begin, end) in enumerate(pairwise((0, *accumulate(sizes))))
        for first in range(begin, end if rows or end - begin <= _MOST else begin, rows or _MOST)
    ]
    return torch.tensor(found, dtype=torch.int32).view(-1, 3).to(device)


@triton.jit
def _products(
    x, weights, out, tiles, parts, depth, width, of_matrix, of_part, of_row, of_column,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write COLUMNS columns of the products of a tile of rows of ``x`` (n, parts * depth) with one part of its matrix."""
    across = tl.cdiv(width, COLUMNS)
    tile, part = tiles + tl.program_id(0) // (across * parts) * 3, tl.program_id(0) // across % parts
    matrix, row = tl.load(tile).to(tl.int64), tl.load(tile + 1).to(tl.int64) + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    here, term = row < tl.load(tile + 2), tl.arange(0, DEPTH)
    left = x + (row * parts + part) * depth + term[None, :]
    right = weights + matrix * of_matrix + part * of_part + term[:, None] * of_row + column * of_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, depth, DEPTH):
        within = first + term < depth
        a = tl.load(left + first, mask=here & within[None, :], other=0.0)
        b = tl.load(right + first * of_row, mask=within[:, None] & (column < width), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(out + (row * parts + part) * width + column, total, mask=here & (column < width))


@triton.jit
def _gradients(x, dy, dweights, tiles, parts, depth, width, ROWS: tl.constexpr, SIDE: tl.constexpr):
    """Write SIDE by SIDE of the gradient of one part of the matrix of a block: the sum over its rows, in order."""
    across, down = tl.cdiv(width, SIDE), tl.cdiv(depth, SIDE)
    tile, part = tiles + tl.program_id(0) // (across * down * parts) * 3, tl.program_id(0) // (across * down) % parts
    matrix, begin, end = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    term = (tl.program_id(0) // across % down) * SIDE + tl.arange(0, SIDE)[:, None]
    column = (tl.program_id(0) % across) * SIDE + tl.arange(0, SIDE)[None, :]
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for first in range(begin, end, ROWS):
        row = tl.cast(first, tl.int64) + tl.arange(0, ROWS)
        a = tl.load(
            x + (row[None, :] * parts + part) * depth + term, mask=(row[None, :] < end) & (term < depth), other=0.0
        )
        b = tl.load(
            dy + (row[:, None] * parts + part) * width + column, mask=(row[:, None] < end) & (column < width), other=0.0
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    to = dweights + ((matrix * parts + part) * depth + term) * width + column
    tl.store(to, total, mask=(term < depth) & (column < width))
