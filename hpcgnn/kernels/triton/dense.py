"""See :mod:`hpcgnn.kernels.dense`: torch's products, by cuBLAS or hipBLASLt, which are tuned for each GPU.

``bf16`` rounds the operands and adds in float32. On AMD's GPUs and on CPUs the library does not return these sums in float32.
There the rounded operands are converted back to float32 first: every product of two of them is exact in float32, so the result
is the same except for the order of sums, and no faster than ``float32``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hpcgnn.kernels.dense import DENSE


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
