"""Features in bfloat16, for :func:`hpcgnn.kernels.spmm` and for torch's products in bfloat16."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.library import native


class NarrowKernels(Protocol):
    """Conversions of matrices."""

    def pack_bf16(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` (n, F) float32 to ``out`` bfloat16, rounded to the nearest, ties to even; every NaN becomes 0x7FC0."""
        out.copy_(x).masked_fill_(x.isnan(), torch.nan)  # copy_ writes one of two NaNs, depending on the position

    def unpack_bf16(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` (n, F) bfloat16 to ``out`` (n, F) float32."""
        out.copy_(x)


class _Native(NarrowKernels):
    def pack_bf16(self, x: Tensor, out: Tensor) -> None:
        native("pack_bf16", count=x.numel(), x=x, out=out)

    def unpack_bf16(self, x: Tensor, out: Tensor) -> None:
        native("unpack_bf16", count=x.numel(), x=x, out=out)


NARROW: Operator[NarrowKernels] = Operator("narrow", NarrowKernels, _Native())


def pack_bf16(x: Tensor, *, backend: str = "auto") -> Tensor:
    """``x`` (n, F) float32 as bfloat16, rounded to the nearest, ties to even; every NaN becomes the one with the bits 0x7FC0."""
    kernels, out = _kernels_and_result(x, torch.float32, torch.bfloat16, backend)
    kernels.pack_bf16(x.detach().contiguous(), out)
    return out


def unpack_bf16(x: Tensor, *, backend: str = "auto") -> Tensor:
    """``x`` (n, F) bfloat16 as float32, exactly."""
    kernels, out = _kernels_and_result(x, torch.bfloat16, torch.float32, backend)
    kernels.unpack_bf16(x.detach().contiguous(), out)
    return out


def _kernels_and_result(
    x: Tensor, given: torch.dtype, wanted: torch.dtype, backend: str
) -> tuple[NarrowKernels, Tensor]:
    check_given(x=x)
    if x.dim() != 2 or x.dtype != given:
        raise misfit("x", x, f"a {given} matrix")
    return choose(NARROW, backend, x=x), buffers.empty(x.shape[0], x.shape[1], wanted, x.device)
