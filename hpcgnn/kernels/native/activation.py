"""See :mod:`hpcgnn.kernels.activation`: one pass for float32, one operation after the other for float64."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.activation import DropoutMask, Norm
from hpcgnn.kernels.native.dropout import dropout
from hpcgnn.kernels.native.library import function, pointer, threads
from hpcgnn.kernels.reference.activation import activate_backward_with, activate_with


class _Activation(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "gamma", "beta", "statistics", "ids")),
        ("key", ctypes.c_uint64),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
    ]


def activate(x: torch.Tensor, norm: Norm | None, mask: DropoutMask | None, out: torch.Tensor) -> torch.Tensor | None:
    """Write ``dropout(relu(norm(x)))`` to ``out``; returns (n, 2), each row's mean and 1/std, if there is a norm."""
    if x.dtype != torch.float32:
        activate_with(dropout, x, norm, mask, out)
        return None
    statistics = None if norm is None else torch.empty(x.shape[0], 2)
    job, _tensors = _argument(x, norm, mask, statistics)
    function("activate")(ctypes.byref(job), pointer(out), threads())
    return statistics


def activate_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    kept: torch.Tensor | None,
    norm: Norm | None,
    mask: DropoutMask | None,
    dx: torch.Tensor,
    dweight: torch.Tensor | None,
    dbias: torch.Tensor | None,
) -> None:
    """Write the gradients of ``x``, weight and bias; ``kept`` is what :func:`activate` returned."""
    if x.dtype != torch.float32:
        activate_backward_with(dropout, dy, x, None, norm, mask, dx, dweight, dbias)
        return
    job, _tensors = _argument(x, norm, mask, kept)
    dy = dy.contiguous()
    function("activate_backward")(
        ctypes.byref(job), pointer(dy), pointer(dx), pointer(dweight), pointer(dbias), threads()
    )


def _argument(
    x: torch.Tensor, norm: Norm | None, mask: DropoutMask | None, statistics: torch.Tensor | None
) -> tuple[_Activation, list[torch.Tensor | None]]:
    """The kernel's argument, and the tensors that must stay while it is used."""
    gamma, beta = (None, None) if norm is None else (norm.weight.contiguous(), norm.bias.contiguous())
    tensors = [x.contiguous(), gamma, beta, statistics, None if mask is None else mask.ids.contiguous()]
    drawn = (0, 0, 1.0) if mask is None else (mask.key, mask.threshold, mask.scale)
    eps = 0.0 if norm is None else norm.eps
    return _Activation(*x.shape, *map(pointer, tensors), *drawn, eps), tensors
