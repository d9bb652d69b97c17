"""See :mod:`hpcgnn.kernels.dense`: torch's products, by cuBLAS or hipBLASLt, which are tuned for each GPU.

``bf16`` rounds the operands and adds in float32. Where the library does not return those sums as they are, which is on AMD's GPUs
and on CPUs, the rounded operands are widened first: every product of two is exact in float32, so the result is the same but
for the order of the sums, and no faster than ``float32``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpcgnn.kernels.reference import dense as by_torch


def arithmetics() -> tuple[str, ...]:
    """What ``compute`` may be."""
    has_tf32 = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return ("float32", "bf16", "tf32") if has_tf32 else ("float32", "bf16")


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    accumulate: bool,
    out: torch.Tensor,
    compute: str,
) -> None:
    """``out`` (n, H) = ``x`` (n, F) times ``weight`` (F, H), plus ``bias`` (H,), plus ``out`` if ``accumulate``."""
    if compute == "tf32":
        with _tf32():
            by_torch.product(x, weight, bias, accumulate, out, "float32")
        return
    if compute == "float32" or not _adds_in_float32(x):
        by_torch.product(_rounded(x, compute), _rounded(weight, compute), bias, accumulate, out, "float32")
        return
    halves = x.bfloat16(), weight.bfloat16()
    if accumulate:
        out += torch.mm(*halves, out_dtype=torch.float32)
    else:
        torch.mm(*halves, out_dtype=torch.float32, out=out)
    if bias is not None:
        out += bias  # not by addmm, which takes a float32 summand beside bfloat16 factors from some torch on only


def weight_gradient(
    x: torch.Tensor, dy: torch.Tensor, dweight: torch.Tensor, sums: torch.Tensor | None, compute: str
) -> None:
    """``dweight`` (F, H) = the transposed ``x`` (n, F) times ``dy`` (n, H); ``sums`` (H,) = those of dy's columns."""
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
    """float32 products round their operands to 10 bits of mantissa, which tensor cores take, and add in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _adds_in_float32(x: torch.Tensor) -> bool:
    """Whether torch returns the float32 sums of products of bfloat16 where ``x`` lies: for CUDA, from torch 2.8 on."""
    return x.is_cuda and torch.version.hip is None and "dtype" in torch.ops.aten.mm.overloads()


def _rounded(x: torch.Tensor, compute: str) -> torch.Tensor:
    """What is multiplied, in ``x``'s type."""
    return x.bfloat16().float() if compute == "bf16" else x
