"""Operands of the kernels between layers beside matrices: a dropout mask and a norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_given, check_number, check_type
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import keyed


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

    def check(self, rows: int) -> None:
        """Raise ValueError unless this is a mask for ``rows`` rows."""
        check_given(ids=self.ids)
        check_type("key", self.key, int)
        keyed.check_key("key", self.key)
        check_number("probability", self.probability)
        if self.ids.shape != (rows,) or self.ids.dtype != torch.int64:
            raise WrongValueError(
                f"ids must be int64 of shape ({rows},), not {self.ids.dtype} of {tuple(self.ids.shape)}"
            )
        if not 0 <= self.probability < 1:
            raise WrongValueError(f"probability must lie in [0, 1), not {self.probability}")


@dataclass(frozen=True)
class Norm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over each row, as ``torch.nn.LayerNorm``.

    weight, bias: (F,) of x's type, contiguous.
    """

    weight: Tensor
    bias: Tensor
    eps: float

    def check(self, x: Tensor) -> None:
        """Raise ValueError unless this norm is for rows of ``x``."""
        check_number("eps", self.eps)
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            if value.shape != x.shape[1:] or value.dtype != x.dtype:
                raise WrongValueError(
                    f"{name} must be {x.dtype} of shape ({x.shape[1]},), not {value.dtype} of {tuple(value.shape)}"
                )
