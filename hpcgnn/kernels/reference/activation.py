"""See :mod:`hpcgnn.kernels.activation`: torch's operations one by one, with torch's own gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.reference.dropout import dropout

Drop = Callable[[Tensor, Tensor, int, int, float, Tensor], None]


def activate_with(drop: Drop, x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> None:
    """Write ``drop(relu(norm(x)))`` to ``out``."""
    y = _normalised(x, norm).relu()
    if mask is None:
        out.copy_(y)
    else:
        drop(y, mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, out)


def activate_backward_with(
    drop: Drop,
    dy: Tensor,
    x: Tensor,
    norm: Norm | None,
    mask: DropoutMask | None,
    dx: Tensor,
    dweight: Tensor | None,
    dbias: Tensor | None,
) -> None:
    """Write the gradients of ``x``, weight and bias. Norm and ReLU are computed again."""
    given = dy
    if mask is not None:
        drop(dy.contiguous(), mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, dx)
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


def _normalised(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else F.layer_norm(x, x.shape[1:], norm.weight, norm.bias, norm.eps)


def activate(x: Tensor, norm: Norm | None, mask: DropoutMask | None, out: Tensor) -> None:
    """Write ``dropout(relu(norm(x)))`` to ``out``."""
    activate_with(dropout, x, norm, mask, out)


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
    """Write the gradients of ``x``, weight and bias; ``kept`` is None."""
    activate_backward_with(dropout, dy, x, norm, mask, dx, dweight, dbias)
