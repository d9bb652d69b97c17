"""Dropout whose mask is a function of a key, the ids of rows and the column, so that it is the same on any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_number, check_type
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import keyed
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import DROPOUT
from hpcgnn.kernels.operands import DropoutMask

_DTYPES = (torch.float32, torch.float64)


def dropout(x: Tensor, ids: Tensor, key: int, probability: float, backend: str = "auto") -> Tensor:
    """``x`` (n, F) with each element zeroed with ``probability``, and the others divided by ``1 - probability``.

    The mask of an element depends on (``key``, ``ids[row]``, column) alone. ``x``: float32 or float64. ``ids``: (n,) int64.
    ``key``: in [0, 2**64). Not differentiable; :class:`hpcgnn.nn.layers.KeyedDropout` is.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_given(x=x, ids=ids)
    check_type("key", key, int)
    keyed.check_key("key", key)
    check_number("probability", probability)
    if x.dim() != 2 or x.dtype not in _DTYPES:
        raise WrongValueError(f"x must be two-dimensional float32 or float64, not {x.dtype} of shape {tuple(x.shape)}")
    if ids.shape != x.shape[:1] or ids.dtype != torch.int64:
        raise WrongValueError(
            f"ids must be int64 of shape ({x.shape[0]},), not {ids.dtype} of shape {tuple(ids.shape)}"
        )
    if not 0 <= probability < 1:
        raise WrongValueError(f"probability must lie in [0, 1), not {probability}")
    if torch.is_grad_enabled() and x.requires_grad:
        raise WrongValueError("x must not need a gradient: hpcgnn.nn.layers.KeyedDropout is the differentiable dropout")
    choose(DROPOUT, backend, x=x, ids=ids)  # raises where they are on two devices
    return drop(x, DropoutMask(ids, key, probability), backend)


def drop(x: Tensor, mask: DropoutMask, backend: str) -> Tensor:
    """:func:`dropout` for layers, whose masks fit but for an input of another type or number of rows."""
    if x.dim() != 2 or x.dtype not in _DTYPES or x.is_neg() or mask.ids.shape != x.shape[:1]:
        return dropout(x, mask.ids, mask.key, mask.probability, backend)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kernels = choose(DROPOUT, backend, x=x)
    kernels.dropout(x.contiguous(), mask.ids.contiguous(), mask.key, mask.threshold, mask.scale, out)
    return out
