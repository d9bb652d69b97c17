"""The operations between two layers, ``dropout(relu(norm(x)))``, in one pass, and dropout alone.

The mask of dropout is a function of a key, the ids of rows and the column, so that it is the same on any number of ranks. These
functions are not differentiable; :mod:`hpcgnn.kernels.autograd` wraps the first, and :class:`hpcgnn.nn.layers.KeyedDropout` the
second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_number, check_type
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers, keyed
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.library import Struct, native, struct

_FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class DropoutMask:
    """The elements of a matrix that :func:`hpcgnn.kernels.dropout` zeroes.

    ids: (n,) int64, a number for each row, such as the original node id. key: in [0, 2**64). probability: in [0, 1).
    """

    ids: Tensor
    key: int
    probability: float

    @property
    def threshold(self) -> int:
        """An element is zeroed if its draw is below this number."""
        return keyed.threshold(self.probability)

    @property
    def scale(self) -> float:
        """The factor of the other elements."""
        return 1 / (1 - self.probability)


@dataclass(frozen=True)
class Norm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over each row, as ``torch.nn.LayerNorm``.

    weight, bias: (F,) of x's type, contiguous.
    """

    weight: Tensor
    bias: Tensor
    eps: float


# -- dropout -----------------------------------------------------------------------------------------------------------


class DropoutKernels(Protocol):
    """One function."""

    def dropout(self, x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
        """Write ``x * scale`` (n, F), float32 or float64, to ``out``, but 0 where the random draw is below ``threshold``.

        The draw is that of :mod:`hpcgnn.kernels.keyed` for (key, ids[row], column). ids: (n,) int64.
        """
        hashes = keyed.row_hashes(key, ids.numpy())
        kept = keyed.draws(hashes[:, None], np.arange(x.shape[1])[None, :]) >= np.uint32(threshold)
        torch.mul(x, scale, out=out)
        out.masked_fill_(torch.from_numpy(~kept), 0)


class _NativeDropout(DropoutKernels):
    def dropout(self, x: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out: Tensor) -> None:
        (rows, width), draw = x.shape, {"key": key, "threshold": threshold, "scale": scale}
        native("dropout", x.dtype, rows=rows, width=width, ids=ids, x=x, out=out, **draw)


DROPOUT: Operator[DropoutKernels] = Operator("dropout", DropoutKernels, _NativeDropout())


def dropout(x: Tensor, ids: Tensor, key: int, probability: float, backend: str = "auto") -> Tensor:
    """``x`` (n, F) with each element zeroed with ``probability``, and the others divided by ``1 - probability``.

    The mask of an element depends on (``key``, ``ids[row]``, column) alone. ``x``: float32 or float64. ``ids``: (n,) int64.
    ``key``: in [0, 2**64). Not differentiable; :class:`hpcgnn.nn.layers.KeyedDropout` is.
    """
    check_given(x=x, ids=ids)
    mask = DropoutMask(ids, key, probability)
    check_activation(x, None, mask)
    if torch.is_grad_enabled() and x.requires_grad:
        raise WrongValueError("x must not need a gradient: hpcgnn.nn.layers.KeyedDropout is the differentiable dropout")
    choose(DROPOUT, backend, x=x, ids=ids)  # raises where they are on two devices
    return drop(x, mask, backend)


def drop(x: Tensor, mask: DropoutMask, backend: str) -> Tensor:
    """:func:`dropout` for layers, whose masks fit but for an input of another type or number of rows."""
    if x.dim() != 2 or x.dtype not in _FLOATS or x.is_neg() or mask.ids.shape != x.shape[:1]:
        return dropout(x, mask.ids, mask.key, mask.probability, backend)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kernels = choose(DROPOUT, backend, x=x)
    kernels.dropout(x.contiguous(), mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, out)
    return out


# -- norm, ReLU and dropout --------------------------------------------------------------------------------------------


class ActivationKernels(Protocol):
    """All tensors of a call, except a mask's ids, are float32, or all are float64."""

    def activate(self, x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        """Write ``dropout(relu(norm(x)))`` (n, F) to ``out``; return a tensor that the backward pass takes as ``kept``, or None.

        ``x`` and the tensors of ``norm`` and ``mask`` need not be contiguous.
        """
        ...

    def activate_backward(
        self, dy: Tensor, x: Tensor, kept: Tensor | None, norm: Norm | None, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor | None, dbias: Tensor | None,
    ) -> None:  # fmt: skip
        """Write the gradients of ``x`` (n, F) and, with a norm, of its weight and bias (F,). ``dy`` has the shape of ``x``, and
        need not be contiguous either."""
        ...


class ByTorch(ActivationKernels):
    """torch's operations one by one, with torch's own gradients, and the dropout of ``kernels``."""

    def __init__(self, kernels: DropoutKernels) -> None:
        self._kernels = kernels

    def activate(self, x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        """Nothing is kept."""
        y = _normalised(x, norm).relu()
        if mask is None:
            out.copy_(y)
        else:
            self._drop(y, mask, out)
        return None

    def activate_backward(
        self, dy: Tensor, x: Tensor, kept: Tensor | None, norm: Norm | None, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor | None, dbias: Tensor | None,
    ) -> None:  # fmt: skip
        """Norm and ReLU are computed again."""
        given = dy
        if mask is not None:
            self._drop(dy.contiguous(), mask, dx)
            given = dx
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            wanted, results = [leaf], [dx]
            if norm is not None and dweight is not None and dbias is not None:
                norm = Norm(norm.weight.detach().requires_grad_(), norm.bias.detach().requires_grad_(), norm.eps)
                wanted, results = [leaf, norm.weight, norm.bias], [dx, dweight, dbias]
            y = _normalised(leaf, norm).relu()
        for result, gradient in zip(results, torch.autograd.grad(y, wanted, given), strict=True):
            result.copy_(gradient)

    def _drop(self, values: Tensor, mask: DropoutMask, out: Tensor) -> None:
        self._kernels.dropout(values, mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, out)


def _normalised(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else F.layer_norm(x, x.shape[1:], norm.weight, norm.bias, norm.eps)


class _Native(ByTorch):
    """One pass for float32; each row's mean and 1/std, (n, 2), are kept. float64 goes to torch."""

    def activate(self, x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        if x.dtype != torch.float32:
            return super().activate(x, norm, mask, out)
        statistics = None if norm is None else torch.empty(x.shape[0], 2)
        native("activate", job=_job(x, norm, mask, statistics), out=out)
        return statistics

    def activate_backward(
        self, dy: Tensor, x: Tensor, kept: Tensor | None, norm: Norm | None, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor | None, dbias: Tensor | None,
    ) -> None:  # fmt: skip
        if x.dtype != torch.float32:
            super().activate_backward(dy, x, kept, norm, mask, dx, dweight, dbias)
            return
        native(
            "activate_backward", job=_job(x, norm, mask, kept), dy=dy.contiguous(), dx=dx, dgamma=dweight, dbeta=dbias
        )


def _job(x: Tensor, norm: Norm | None, mask: DropoutMask | None, statistics: Tensor | None) -> Struct:
    """The native kernel's argument."""
    fields: dict[str, Any] = {"gamma": None, "beta": None, "eps": 0.0}
    fields |= {"ids": None, "key": 0, "threshold": 0, "scale": 1.0}
    if norm is not None:
        fields |= {"gamma": norm.weight.contiguous(), "beta": norm.bias.contiguous(), "eps": norm.eps}
    if mask is not None:
        fields |= {"ids": mask.ids.contiguous(), "key": mask.key, "threshold": mask.threshold, "scale": mask.scale}
    rows, width = x.shape
    return struct("hpcgnn_activation")(rows=rows, width=width, x=x.contiguous(), statistics=statistics, **fields)


ACTIVATION: Operator[ActivationKernels] = Operator(
    "activation", ActivationKernels, _Native(DROPOUT.native), other_bodies=ByTorch(DROPOUT.reference)
)


def check_activation(x: Tensor, norm: Norm | None, mask: DropoutMask | None) -> None:
    """Raise ValueError, which names the argument, unless these can be arguments of :func:`activate`."""
    if x.dim() != 2 or x.dtype not in _FLOATS:
        raise misfit("x", x, "two-dimensional float32 or float64")
    if norm is not None:
        check_number("eps", norm.eps)
        for name, value in (("weight", norm.weight), ("bias", norm.bias)):
            if value.shape != x.shape[1:] or value.dtype != x.dtype:
                raise misfit(name, value, f"{x.dtype} of shape ({x.shape[1]},)")
    if mask is not None:
        check_given(ids=mask.ids)
        check_type("key", mask.key, int)
        keyed.check_key("key", mask.key)
        check_number("probability", mask.probability)
        if mask.ids.shape != x.shape[:1] or mask.ids.dtype != torch.int64:
            raise misfit("ids", mask.ids, f"int64 of shape ({x.shape[0]},)")
        if not 0 <= mask.probability < 1:
            raise WrongValueError(f"probability must lie in [0, 1), not {mask.probability}")


def activate(
    kernels: ActivationKernels, x: Tensor, norm: Norm | None, mask: DropoutMask | None
) -> tuple[Tensor, Tensor | None]:
    """``dropout(relu(norm(x)))`` of ``x`` (n, F) float32 or float64, and the tensor, or None, that the gradient needs beside
    ``x``. Arguments were checked by :func:`check_activation`."""
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
