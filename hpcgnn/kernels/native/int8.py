"""See :mod:`hpcgnn.kernels.int8`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import function, has_dot_products, isa, threads
from hpcgnn.kernels.native.spmm import csr_argument

dot_products = has_dot_products


def gathers_bytes() -> bool:
    """Return whether summing gathered rows is faster with 8-bit integers: it is with registers of 64 bytes, by the study
    `products`.

    With shorter registers, the conversion of bytes to floats costs as much time as the smaller rows save.
    """
    return isa() == "avx512"


def quantize_rows(x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
    """Quantize the rows of ``x`` (n, F), times ``factor`` (n,), to ``codes`` (n, F) and ``scale`` (n,)."""
    function("quantize_int8")(
        rows=x.shape[0],
        width=x.shape[1],
        x=x,
        factor=factor,
        to_nearest=key is None,
        key=key or 0,
        codes=codes,
        scale=scale,
        threads=threads(),
    )


def product(
    codes: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_key: int | None,
    bias: Tensor | None,
    accumulate: bool,
    out: Tensor,
) -> None:
    """``out`` = ``(codes * scale) @ weight + bias``; the columns of ``weight`` are quantized with noise of ``weight_key``."""
    _kernel("dense_int8")(
        rows=codes.shape[0],
        depth=codes.shape[1],
        width=weight.shape[1],
        codes=codes,
        scale=scale,
        weight=weight,
        row_stride=weight.stride(0),
        column_stride=weight.stride(1),
        weight_to_nearest=weight_key is None,
        weight_key=weight_key or 0,
        bias=bias,
        accumulate=accumulate,
        y=out,
        threads=threads(),
    )


def weight_gradient(
    codes: Tensor, scale: Tensor, dy: Tensor, key: int | None, dweight: Tensor, sums: Tensor | None
) -> None:
    """Write ``(codes * scale).T @ dy`` to ``dweight`` (F, H), and the sums of the columns of ``dy`` to ``sums`` (H,)."""
    _kernel("dense_gradient_int8")(
        rows=codes.shape[0],
        depth=codes.shape[1],
        width=dy.shape[1],
        codes=codes,
        scale=scale,
        dy=dy,
        to_nearest=key is None,
        key=key or 0,
        dweight=dweight,
        sums=sums,
        threads=threads(),
    )


def sddmm(csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
    """Write the products of row r of ``a`` and row c of ``b``, codes with scales, to ``out`` for each entry (r, c)."""
    _kernel("sddmm_int8")(
        csr=csr_argument(csr),
        a=a,
        a_scale=a_scale,
        b=b,
        b_scale=b_scale,
        width=a.shape[1],
        heads=heads,
        out=out,
        threads=threads(),
    )


def _kernel(name: str) -> Callable[..., Any]:
    """The variant of the kernel ``name`` for the best instructions of this CPU."""
    return function(f"{name}_dot" if has_dot_products() else name)
