"""See :mod:`hpcgnn.kernels.narrow`."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.native.library import function, threads


def pack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``, rounded to the nearest, ties to even."""
    function("pack_bf16")(count=x.numel(), x=x, out=out, threads=threads())


def unpack_bf16(x: Tensor, out: Tensor) -> None:
    """``out`` = ``x``."""
    function("unpack_bf16")(count=x.numel(), x=x, out=out, threads=threads())
