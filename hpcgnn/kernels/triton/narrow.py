"""See :mod:`hpcgnn.kernels.narrow`."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.triton.launch import launch
from hpcgnn.kernels.triton.plain import to_bfloat16
from hpcgnn.kernels.triton.tiles import WARP, rows_of_tile


def pack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``, rounded to the nearest, ties to even; every NaN becomes 0x7FC0."""
    _launch(_pack, x.view(torch.int32), out.view(torch.int16))


def unpack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``."""
    _launch(_unpack, x.view(torch.int16), out.view(torch.int32))


def _launch(kernel: Any, x: Tensor, out: Tensor) -> None:
    values = rows_of_tile(x.numel(), 1, 4 * WARP)
    launch(kernel, triton.cdiv(x.numel(), values), x, out, x.numel(), VALUES=values)


@triton.jit(do_not_specialize=["count"])
def _pack(x, out, count, VALUES: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    if tl.program_id(0).to(tl.int64) * VALUES + VALUES <= count:  # without a mask, loads and stores have 16 bytes
        pattern = tl.load(x + at).to(tl.uint32, bitcast=True)
        tl.store(out + at, to_bfloat16(pattern).to(tl.int16))
    else:
        pattern = tl.load(x + at, mask=at < count, other=0).to(tl.uint32, bitcast=True)
        tl.store(out + at, to_bfloat16(pattern).to(tl.int16), mask=at < count)


@triton.jit(do_not_specialize=["count"])
def _unpack(x, out, count, VALUES: tl.constexpr):
    # A thread loads exactly the four values that it stores, so that no value moves between threads.
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.max_contiguous(tl.arange(0, VALUES), 4)
    if tl.program_id(0).to(tl.int64) * VALUES + VALUES <= count:
        tl.store(out + at, tl.load(x + at).to(tl.int32) << 16)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < count, other=0).to(tl.int32) << 16, mask=at < count)
