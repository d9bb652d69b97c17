"""Features in bfloat16, for :func:`hpcgnn.kernels.spmm` and for torch's products in bfloat16."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_tensors
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit, resolve
from hpcgnn.kernels.library import isa, native


class NarrowKernels(Protocol):
    """Conversions of matrices."""

    def pack_bf16(self, x: Tensor, factor: Tensor | None, out: Tensor) -> None:
        """Write ``x`` (n, F) float32, times ``factor`` (n,) float32 by row, to ``out`` bfloat16, rounded to the nearest, ties to
        even; every NaN becomes 0x7FC0."""
        x = x if factor is None else x * factor[:, None]
        out.copy_(x).masked_fill_(x.isnan(), torch.nan)  # copy_ writes one of two NaNs, depending on the position

    def unpack_bf16(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` (n, F) bfloat16 to ``out`` (n, F) float32."""
        out.copy_(x)


class _Native(NarrowKernels):
    def pack_bf16(self, x: Tensor, factor: Tensor | None, out: Tensor) -> None:
        rows, width = x.shape
        native("pack_bf16", rows=rows, width=width, x=x, factor=factor, out=out)

    def unpack_bf16(self, x: Tensor, out: Tensor) -> None:
        native("unpack_bf16", count=x.numel(), x=x, out=out)


NARROW: Operator[NarrowKernels] = Operator("narrow", NarrowKernels, _Native())


def pack_bf16(x: Tensor, factor: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """``x`` (n, F) float32 as bfloat16, rounded to the nearest, ties to even; every NaN becomes the one with the bits 0x7FC0.

    factor: (n,) float32, by which rows are multiplied before they are rounded; None: they are not.
    """
    kernels, out = _kernels_and_result(x, torch.float32, torch.bfloat16, backend)
    check_tensors(factor=factor)
    if factor is not None and (factor.shape != x.shape[:1] or factor.dtype != x.dtype or not factor.is_contiguous()):
        raise misfit("factor", factor, f"contiguous torch.float32 of shape ({x.shape[0]},)")
    kernels.pack_bf16(x.detach().contiguous(), factor, out)
    return out


def unpack_bf16(x: Tensor, *, backend: str = "auto") -> Tensor:
    """``x`` (n, F) bfloat16 as float32, exactly."""
    kernels, out = _kernels_and_result(x, torch.bfloat16, torch.float32, backend)
    kernels.unpack_bf16(x.detach().contiguous(), out)
    return out


def speeds_up_sums(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether sums of many gathered rows (:mod:`hpcgnn.kernels.spmm`) are faster with bfloat16 rows than with float32's.

    They are with registers of 64 bytes. With AVX2, the conversion to floats costs as much time as the smaller rows save. On
    GPUs, on ARM and with numba's kernels this was not measured.
    """
    return resolve(backend, x=torch.empty(0, device=torch_device)) == "native" and isa() == "avx512"


def _kernels_and_result(
    x: Tensor, given: torch.dtype, wanted: torch.dtype, backend: str
) -> tuple[NarrowKernels, Tensor]:
    check_given(x=x)
    if x.dim() != 2 or x.dtype != given:
        raise misfit("x", x, f"a {given} matrix")
    return choose(NARROW, backend, x=x), buffers.empty(x.shape[0], x.shape[1], wanted, x.device)
