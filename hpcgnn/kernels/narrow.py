"""Features in bfloat16, for :func:`hpcgnn.kernels.spmm` and for torch's products in bfloat16, on every backend."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_tensors
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import NARROW


def pack_bf16(x: Tensor, *, backend: str = "auto", out: Tensor | None = None) -> Tensor:
    """``x`` (n, F) float32 as bfloat16, rounded to the nearest, ties to even; every NaN becomes the one with the bits 0x7FC0.

    ``out`` is (n, F) contiguous bfloat16 to overwrite; None makes a new tensor.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_tensors(out=out)
    _check_matrix(x, torch.float32)
    kernels = choose(NARROW, backend, x=x, out=out)
    out = _result(out, x, torch.bfloat16)
    kernels.pack_bf16(x.detach().contiguous(), out)
    return out


def unpack_bf16(x: Tensor, *, backend: str = "auto", out: Tensor | None = None) -> Tensor:
    """``x`` (n, F) bfloat16 as float32, exactly. ``out`` is (n, F) contiguous float32 to overwrite; None makes a new tensor.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_tensors(out=out)
    _check_matrix(x, torch.bfloat16)
    kernels = choose(NARROW, backend, x=x, out=out)
    out = _result(out, x, torch.float32)
    kernels.unpack_bf16(x.detach().contiguous(), out)
    return out


def _check_matrix(x: Tensor, dtype: torch.dtype) -> None:
    check_given(x=x)
    if x.dim() != 2 or x.dtype != dtype:
        raise WrongValueError(f"x must be a {dtype} matrix, not {x.dtype} of shape {tuple(x.shape)}")


def _result(given: Tensor | None, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``given``, checked, or a new tensor."""
    if given is None:
        return buffers.empty(x.shape[0], x.shape[1], dtype, x.device)
    if given.shape != x.shape or given.dtype != dtype or not given.is_contiguous():
        raise WrongValueError(
            f"out must be contiguous {dtype} of shape {tuple(x.shape)}, not {given.dtype} of {tuple(given.shape)}"
        )
    return given
