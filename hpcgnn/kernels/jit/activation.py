"""See :mod:`hpcgnn.kernels.activation`: torch's norm and ReLU, numba's dropout."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.jit.dropout import dropout
from hpcgnn.kernels.operands import DropoutMask, Norm
from hpcgnn.kernels.reference.activation import activate_backward_with, activate_with


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
