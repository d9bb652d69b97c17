"""See :mod:`hpcgnn.kernels.activation`: one pass in C++ for float32, and torch's operations one by one for float64."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hpcgnn.kernels.native.dropout import dropout
from hpcgnn.kernels.native.library import function, struct, threads
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.reference.activation import activate_backward_with, activate_with


def activate(x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> Tensor | None:
    """Write ``dropout(relu(norm(x)))`` to ``out``; with a norm and float32, return each row's mean and 1/std, (n, 2)."""
    if x.dtype != torch.float32:
        activate_with(dropout, x, norm, mask, out)
        return None
    statistics = None if norm is None else torch.empty(x.shape[0], 2)
    job, _tensors = _job(x, norm, mask, statistics)
    function("activate")(job=job, out=out, threads=threads())
    return statistics


def activate_backward(
    dy: Tensor,
    x: Tensor,
    kept: Tensor | None,
    norm: Norm | None,
    mask: DropoutMask | None,
    dx: Tensor,
    dweight: Tensor | None,
    dbias: Tensor | None,
) -> None:
    """Write the gradients of ``x``, weight and bias; ``kept`` is what :func:`activate` returned."""
    if x.dtype != torch.float32:
        activate_backward_with(dropout, dy, x, norm, mask, dx, dweight, dbias)
        return
    job, _tensors = _job(x, norm, mask, kept)
    function("activate_backward")(job=job, dy=dy.contiguous(), dx=dx, dgamma=dweight, dbeta=dbias, threads=threads())


def _job(
    x: Tensor, norm: Norm | None, mask: DropoutMask | None, statistics: Tensor | None
) -> tuple[ctypes.Structure, list[Tensor | None]]:
    """The kernel's argument, and the tensors that must live while it is used."""
    x = x.contiguous()
    gamma, beta = (None, None) if norm is None else (norm.weight.contiguous(), norm.bias.contiguous())
    ids = None if mask is None else mask.ids.contiguous()
    job = struct("hpcgnn_activation")(
        rows=x.shape[0],
        width=x.shape[1],
        x=x,
        gamma=gamma,
        beta=beta,
        statistics=statistics,
        ids=ids,
        key=0 if mask is None else mask.key,
        threshold=0 if mask is None else mask.threshold,
        scale=1.0 if mask is None else mask.scale,
        eps=0.0 if norm is None else norm.eps,
    )
    return job, [x, gamma, beta, ids]
