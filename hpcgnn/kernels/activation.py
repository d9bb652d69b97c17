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


@dataclass(frozen=True)
class Shift:
    """``x + bias``, with ``bias`` (F,) of x's type, contiguous."""

    bias: Tensor


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

    def activate(self, x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        """Write ``dropout(relu(norm(x)))`` (n, F) to ``out``, and return what the backward pass takes: statistics of a
        :class:`Norm`, or None; without one, bits that tell where the result is positive or NaN.

        ``x`` and the tensors of ``norm`` and ``mask`` need not be contiguous.
        """
        ...

    def activate_backward(
        self, dy: Tensor, x: Tensor, statistics: Tensor | None, norm: Norm, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor, dbias: Tensor,
    ) -> None:  # fmt: skip
        """Write the gradients of ``x`` (n, F), and of the norm's weight and bias (F,). ``dy`` has the shape of ``x``, and need
        not be contiguous either."""
        ...

    def relu_backward(self, dy: Tensor, positive: Tensor, scale: float, dx: Tensor, sums: Tensor | None) -> None:
        """Write the gradient ``dx`` of ``x`` (n, F) without a :class:`Norm`: ``dy * scale`` where the bit is set that
        :meth:`activate` has returned as ``positive``, else 0. ``dx`` may be ``dy``. sums: (F,) float64, to which the sums of its
        columns are written.
        """
        ...

    def column_sums(self, x: Tensor, sums: Tensor) -> None:
        """Write the sums of the columns of ``x`` (n, F) to ``sums`` (F,) float64."""
        torch.sum(x, 0, dtype=torch.float64, out=sums)


class ByTorch(ActivationKernels):
    """torch's operations one by one, with torch's own gradients, and the dropout of ``kernels``."""

    def __init__(self, kernels: DropoutKernels) -> None:
        self._kernels = kernels

    def activate(self, x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        """No statistics are kept."""
        y = _normalised(x, norm).relu()
        if mask is None:
            out.copy_(y)
        else:
            self._drop(y, mask, out)
        return None if isinstance(norm, Norm) else _bits(~(out <= 0))

    def activate_backward(
        self, dy: Tensor, x: Tensor, statistics: Tensor | None, norm: Norm, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor, dbias: Tensor,
    ) -> None:  # fmt: skip
        """Norm and ReLU are computed again."""
        given = dy
        if mask is not None:
            self._drop(dy.contiguous(), mask, dx)
            given = dx
        with torch.enable_grad():
            wanted = [tensor.detach().requires_grad_() for tensor in (x, norm.weight, norm.bias)]
            y = _normalised(wanted[0], Norm(wanted[1], wanted[2], norm.eps)).relu()
        for result, gradient in zip((dx, dweight, dbias), torch.autograd.grad(y, wanted, given), strict=True):
            result.copy_(gradient)

    def relu_backward(self, dy: Tensor, positive: Tensor, scale: float, dx: Tensor, sums: Tensor | None) -> None:
        """A bool a value exists for a moment."""
        flags = ((positive[:, :, None] >> _places(positive.device)) & 1).flatten(1)[:, : dx.shape[1]].bool()
        torch.mul(dy, scale, out=dx).masked_fill_(~flags, 0)
        if sums is not None:
            self.column_sums(dx, sums)

    def _drop(self, values: Tensor, mask: DropoutMask, out: Tensor) -> None:
        self._kernels.dropout(values, mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, out)


def bytes_of_bits(width: int) -> int:
    """The bytes of one bit for each of ``width`` columns."""
    return (width + 7) // 8


def _bits(flags: Tensor) -> Tensor:
    """(n, F) bool as bits, (n, bytes_of_bits(F)) uint8, the first column in the lowest."""
    rows, width = flags.shape
    bits = F.pad(flags.byte(), (0, -width % 8)).view(rows, bytes_of_bits(width), 8)
    return (bits << _places(flags.device)).sum(2, dtype=torch.uint8)


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _normalised(x: Tensor, norm: Norm | Shift | None) -> Tensor:
    if isinstance(norm, Shift):
        return x + norm.bias
    return x if norm is None else F.layer_norm(x, x.shape[1:], norm.weight, norm.bias, norm.eps)


class _Native(ByTorch):
    """One pass for float32; each row's mean and 1/std, (n, 2), or its bits are kept. float64 goes to torch."""

    def activate(self, x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
        if x.dtype != torch.float32:
            return super().activate(x, norm, mask, out)
        if isinstance(norm, Norm):
            kept = torch.empty(x.shape[0], 2)
            native("activate", job=_job(x, norm, mask, statistics=kept), out=out)
        else:
            kept = buffers.empty(x.shape[0], bytes_of_bits(x.shape[1]), torch.uint8)
            native("activate", job=_job(x, norm, mask, positive=kept), out=out)
        return kept

    def activate_backward(
        self, dy: Tensor, x: Tensor, statistics: Tensor | None, norm: Norm, mask: DropoutMask | None,
        dx: Tensor, dweight: Tensor, dbias: Tensor,
    ) -> None:  # fmt: skip
        if x.dtype != torch.float32:
            super().activate_backward(dy, x, statistics, norm, mask, dx, dweight, dbias)
            return
        job = _job(x, norm, mask, statistics=statistics)
        native("activate_backward", job=job, dy=dy.contiguous(), dx=dx, dgamma=dweight, dbeta=dbias)

    def relu_backward(self, dy: Tensor, positive: Tensor, scale: float, dx: Tensor, sums: Tensor | None) -> None:
        if dy.dtype != torch.float32:
            super().relu_backward(dy, positive, scale, dx, sums)
            return
        (rows, width), given = dy.shape, {"positive": positive, "dy": dy.contiguous(), "scale": scale}
        native("relu_backward", rows=rows, width=width, **given, dx=dx, sums=sums)

    def column_sums(self, x: Tensor, sums: Tensor) -> None:
        if x.dtype != torch.float32:
            super().column_sums(x, sums)
            return
        native("column_sums", rows=x.shape[0], width=x.shape[1], x=x.contiguous(), sums=sums)


def _job(
    x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None,
    *, statistics: Tensor | None = None, positive: Tensor | None = None,
) -> Struct:  # fmt: skip
    """The native kernel's argument."""
    fields: dict[str, Any] = {"gamma": None, "beta": None, "eps": 0.0}
    fields |= {"ids": None, "key": 0, "threshold": 0, "scale": 1.0}
    if norm is not None:
        fields["beta"] = norm.bias.contiguous()
    if isinstance(norm, Norm):
        fields |= {"gamma": norm.weight.contiguous(), "eps": norm.eps}
    if mask is not None:
        fields |= {"ids": mask.ids.contiguous(), "key": mask.key, "threshold": mask.threshold, "scale": mask.scale}
    rows, width = x.shape
    fields |= {"statistics": statistics, "positive": positive}
    return struct("hpcgnn_activation")(rows=rows, width=width, x=x.contiguous(), **fields)


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
    kernels: ActivationKernels,
    x: Tensor,
    norm: Norm | Shift | None,
    mask: DropoutMask | None,
    *,
    overwrites: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``dropout(relu(norm(x)))`` of ``x`` (n, F) float32 or float64, and what its gradient needs: with a :class:`Norm` ``x`` and
    statistics, without one a bit of each value. overwrites: write the result over ``x``, which is contiguous, and not needed for
    the gradient. Arguments were checked by :func:`check_activation`."""
    out = x.detach() if overwrites else buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    return out, kernels.activate(x, norm, mask, out)


def activate_backward(
    kernels: ActivationKernels, dy: Tensor, x: Tensor, statistics: Tensor | None, norm: Norm, mask: DropoutMask | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias from ``dy`` (n, F); ``statistics`` is the second result of :func:`activate`."""
    dx = buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)
    dweight, dbias = torch.empty_like(norm.weight), torch.empty_like(norm.bias)
    kernels.activate_backward(dy, x, statistics, norm, mask, dx, dweight, dbias)
    return dx, dweight, dbias


def relu_backward(
    kernels: ActivationKernels, dy: Tensor, positive: Tensor, mask: DropoutMask | None, sums: Tensor | None = None,
    *, overwrites: bool,
) -> Tensor:  # fmt: skip
    """The gradient of x from ``dy`` (n, F) and the bits that :func:`activate` has returned without a :class:`Norm`. sums: see
    :meth:`ActivationKernels.relu_backward`. overwrites: write it over ``dy``."""
    dx = dy if overwrites else buffers.empty(dy.shape[0], dy.shape[1], dy.dtype, dy.device)
    kernels.relu_backward(dy, positive, 1.0 if mask is None else mask.scale, dx, sums)
    return dx


def column_sums(x: Tensor, backend: str = "auto") -> Tensor:
    """(F,) float64 sums of the columns of ``x`` (n, F). Not differentiable."""
    sums = torch.empty(x.shape[1], dtype=torch.float64, device=x.device)
    if x.dtype in _FLOATS:
        choose(ACTIVATION, backend, x=x).column_sums(x, sums)
        return sums
    return torch.sum(x, 0, dtype=torch.float64, out=sums)


def activation_kernels(
    x: Tensor, norm: Norm | Shift | None, mask: DropoutMask | None, backend: str
) -> ActivationKernels:
    """The kernels for these arguments. Raises ValueError where their devices or types differ, or no backend takes them."""
    weight, bias = getattr(norm, "weight", None), None if norm is None else norm.bias
    return choose(ACTIVATION, backend, x=x, weight=weight, bias=bias, ids=None if mask is None else mask.ids)
