"""See :mod:`hpcgnn.kernels.dense`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.native.library import function, isa, pointer, threads
from hpcgnn.kernels.reference import dense as by_torch

# Below this torch's product is as fast, by docs/compute.md; whatever the number of threads, so that bits do not depend on it.
_LEAST_MULTIPLICATIONS = 1 << 22
_LEAST_WIDTH = 8
_SUFFIX = {"float32": "f32", "bf16": "bf16"}


def pays(rows: int, in_width: int, out_width: int) -> bool:
    """Whether the kernels here are faster than torch's for the product (rows, in_width) x (in_width, out_width)."""
    is_large = rows * in_width * out_width >= _LEAST_MULTIPLICATIONS and min(in_width, out_width) >= _LEAST_WIDTH
    return is_large and isa() != "scalar"


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, accumulate: bool, out: torch.Tensor
) -> None:
    """``out`` (n, H) = ``x`` (n, F) times ``weight`` (F, H), plus ``bias`` (H,), plus ``out`` if ``accumulate``."""
    kernel = multiply if x.dtype == torch.float32 and pays(x.shape[0], *weight.shape) else by_torch.product
    kernel(x, weight, bias, accumulate, out)


def weight_gradient(x: torch.Tensor, dy: torch.Tensor, dweight: torch.Tensor, sums: torch.Tensor | None) -> None:
    """``dweight`` (F, H) = the transposed ``x`` (n, F) times ``dy`` (n, H); ``sums`` (H,) = those of dy's columns."""
    kernel = contract if x.dtype == torch.float32 and pays(x.shape[0], *dweight.shape) else by_torch.weight_gradient
    kernel(x, dy, dweight, sums)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    accumulate: bool,
    out: torch.Tensor,
    compute: str = "float32",
) -> None:
    """:func:`product` by the kernel of an arithmetic, whatever the size; float32 tensors."""
    function(f"dense_{_SUFFIX[compute]}")(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        ctypes.c_int64(weight.shape[1]),
        pointer(x),
        pointer(weight),
        ctypes.c_int64(weight.stride(0)),
        ctypes.c_int64(weight.stride(1)),
        pointer(bias),
        ctypes.c_int(accumulate),
        pointer(out),
        threads(),
    )


def contract(
    x: torch.Tensor, dy: torch.Tensor, dweight: torch.Tensor, sums: torch.Tensor | None, compute: str = "float32"
) -> None:
    """:func:`weight_gradient` by the kernel of an arithmetic, whatever the size; float32 tensors."""
    function(f"dense_gradient_{_SUFFIX[compute]}")(
        ctypes.c_int64(x.shape[0]),
        ctypes.c_int64(x.shape[1]),
        ctypes.c_int64(dy.shape[1]),
        pointer(x),
        pointer(dy),
        pointer(dweight),
        pointer(sums),
        threads(),
    )
