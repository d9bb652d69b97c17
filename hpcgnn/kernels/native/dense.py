"""See :mod:`hpcgnn.kernels.dense`."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.kernels.native.library import function, isa, multiplies_bf16, threads
from hpcgnn.kernels.reference import dense as by_torch

# Below these sizes torch's product is as fast, by the study `products`. The limits do not depend on the number of threads, so
# that results do not, either.
_LEAST_MULTIPLICATIONS = 1 << 22
_LEAST_WIDTH = 8
_SUFFIX = {"float32": "f32", "bf16": "bf16"}


def arithmetics() -> tuple[str, ...]:
    """The values of ``compute`` that work on this CPU."""
    return ("float32", "bf16") if multiplies_bf16() else ("float32",)


def pays(rows: int, in_width: int, out_width: int) -> bool:
    """Return whether the kernels here are faster than torch's for the product (rows, in_width) x (in_width, out_width)."""
    is_large = rows * in_width * out_width >= _LEAST_MULTIPLICATIONS and min(in_width, out_width) >= _LEAST_WIDTH
    return is_large and isa() != "scalar"


def product(x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str) -> None:
    """``out`` (n, H) = ``x`` (n, F) times ``weight`` (F, H), plus ``bias`` (H,), plus ``out`` if ``accumulate``."""
    if compute != "float32" or (x.dtype == torch.float32 and pays(x.shape[0], *weight.shape)):
        multiply(x, weight, bias, accumulate, out, compute)
    else:
        by_torch.product(x, weight, bias, accumulate, out, compute)


def weight_gradient(x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
    """Write ``x.T @ dy``, of ``x`` (n, F) and ``dy`` (n, H), to ``dweight`` (F, H), and the sums of the columns of ``dy`` to
    ``sums`` (H,)."""
    if compute != "float32" or (x.dtype == torch.float32 and pays(x.shape[0], *dweight.shape)):
        contract(x, dy, dweight, sums, compute)
    else:
        by_torch.weight_gradient(x, dy, dweight, sums, compute)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str = "float32"
) -> None:
    """:func:`product` by the native kernel of ``compute``, at any size; float32 tensors."""
    function(f"dense_{_SUFFIX[compute]}")(
        rows=x.shape[0],
        depth=x.shape[1],
        width=weight.shape[1],
        x=x,
        weight=weight,
        row_stride=weight.stride(0),
        column_stride=weight.stride(1),
        bias=bias,
        accumulate=accumulate,
        y=out,
        threads=threads(),
    )


def contract(x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str = "float32") -> None:
    """:func:`weight_gradient` by the native kernel of ``compute``, at any size; float32 tensors."""
    function(f"dense_gradient_{_SUFFIX[compute]}")(
        rows=x.shape[0], depth=x.shape[1], width=dy.shape[1], x=x, dy=dy, dweight=dweight, sums=sums, threads=threads()
    )
