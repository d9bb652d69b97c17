"""What lies between two layers, ``dropout(relu(norm(x)))``, without gradients; see :func:`hpcgnn.kernels.activation`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.kernels import buffers, keyed
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import ACTIVATION, ActivationKernels


@dataclass(frozen=True)
class DropoutMask:
    """Which elements of a matrix :func:`hpcgnn.kernels.dropout` zeroes.

    ids: (n,) int64, a number for each row. key: 64 bits. probability: in [0, 1).
    """

    ids: torch.Tensor
    key: int
    probability: float

    @property
    def threshold(self) -> int:
        """Draws below it are zeroed."""
        return keyed.threshold(self.probability)

    @property
    def scale(self) -> float:
        """What the other elements are multiplied by."""
        return 1 / (1 - self.probability)

    def check(self, rows: int) -> None:
        """Raise ValueError unless this is a mask for so many rows."""
        if self.ids.shape != (rows,) or self.ids.dtype != torch.int64:
            raise ValueError(f"ids must be int64 of shape ({rows},), not {self.ids.dtype} of {tuple(self.ids.shape)}")
        if not 0 <= self.probability < 1:
            raise ValueError(f"probability must lie in [0, 1), not {self.probability}")


@dataclass(frozen=True)
class Norm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over each row, as ``torch.nn.LayerNorm``.

    weight, bias: (F,) of x's type, contiguous.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def check(self, x: torch.Tensor) -> None:
        """Raise ValueError unless this norm is for rows of ``x``."""
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            if value.shape != x.shape[1:] or value.dtype != x.dtype:
                raise ValueError(
                    f"{name} must be {x.dtype} of shape ({x.shape[1]},), not {value.dtype} of {tuple(value.shape)}"
                )


def activate(
    x: torch.Tensor, norm: Norm | None, mask: DropoutMask | None, backend: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``dropout(relu(norm(x)))`` of (n, F) ``x``, and what the gradient needs beside ``x``.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    if x.dim() != 2 or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be two-dimensional float32 or float64, not {x.dtype} of shape {tuple(x.shape)}")
    if norm is not None:
        norm.check(x)
    if mask is not None:
        mask.check(x.shape[0])
    kernels = _kernels(x, norm, mask, backend)
    out = buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    return out, kernels.activate(x, norm, mask, out)


def activate_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    kept: torch.Tensor | None,
    norm: Norm | None,
    mask: DropoutMask | None,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of x, weight and bias from ``dy`` (n, F); ``kept`` is what :func:`activate` said."""
    kernels = _kernels(x, norm, mask, backend)
    dx = buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    dweight = dbias = None
    if norm is not None:
        dweight, dbias = torch.empty_like(norm.weight), torch.empty_like(norm.bias)
    kernels.activate_backward(dy, x, kept, norm, mask, dx, dweight, dbias)
    return dx, dweight, dbias


def _kernels(x: torch.Tensor, norm: Norm | None, mask: DropoutMask | None, backend: str) -> ActivationKernels:
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    return choose(ACTIVATION, backend, x=x, weight=weight, bias=bias, ids=None if mask is None else mask.ids)
