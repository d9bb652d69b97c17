"""The operations between two layers, ``dropout(relu(norm(x)))``, without gradients; see :func:`hpcgnn.kernels.activation`."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import ACTIVATION, ActivationKernels
from hpcgnn.kernels.operands import DropoutMask, Norm


def check_activation(x: Tensor, norm: Norm | None, mask: DropoutMask | None) -> None:
    """Raise ValueError, which names the argument, unless these can be arguments of :func:`activate`."""
    if x.dim() != 2 or x.dtype not in (torch.float32, torch.float64):
        raise WrongValueError(f"x must be two-dimensional float32 or float64, not {x.dtype} of shape {tuple(x.shape)}")
    if norm is not None:
        norm.check(x)
    if mask is not None:
        mask.check(x.shape[0])


def activate(
    kernels: ActivationKernels, x: Tensor, norm: Norm | None, mask: DropoutMask | None
) -> tuple[Tensor, Tensor | None]:
    """``dropout(relu(norm(x)))`` of ``x`` (n, F) float32 or float64, and the tensor, or None, that the gradient needs beside
    ``x``. Arguments were checked by :func:`check_activation`.
    """
    out = buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    return out, kernels.activate(x, norm, mask, out)


def activate_backward(
    kernels: ActivationKernels, dy: Tensor, x: Tensor, kept: Tensor | None, norm: Norm | None, mask: DropoutMask | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of x, weight and bias from ``dy`` (n, F); ``kept`` is the second result of :func:`activate`."""
    dx = buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    dweight = dbias = None
    if norm is not None:
        dweight, dbias = torch.empty_like(norm.weight), torch.empty_like(norm.bias)
    kernels.activate_backward(dy, x, kept, norm, mask, dx, dweight, dbias)
    return dx, dweight, dbias


def activation_kernels(x: Tensor, norm: Norm | None, mask: DropoutMask | None, backend: str) -> ActivationKernels:
    """The kernels for these arguments. Raises ValueError where their devices or types differ, or no backend takes them."""
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    return choose(ACTIVATION, backend, x=x, weight=weight, bias=bias, ids=None if mask is None else mask.ids)
