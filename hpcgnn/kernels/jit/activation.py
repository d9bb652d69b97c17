"""See :mod:`hpcgnn.kernels.activation`: torch's norm and ReLU, numba's dropout."""

from __future__ import annotations

from functools import partial

from hpcgnn.kernels.jit.dropout import dropout
from hpcgnn.kernels.reference.activation import activate_backward_with, activate_with

activate = partial(activate_with, dropout)
activate_backward = partial(activate_backward_with, dropout)
