"""The ways in which a training step keeps what its backward pass needs: ``--activations``.

``keep`` keeps it. ``recompute`` keeps one row of a node and layer, and repeats local arithmetic in backward, bit for bit: sums of
neighbours come again from the rows and from the bytes that had arrived, so nothing is sent twice; dropout draws by key. Layers
that have no such step of their own run again as a whole (:mod:`hpcgnn.kernels.again`). ``8bit`` keeps (n, F) matrices as 8-bit
integers with one scale a row and stochastic rounding (ActNN, Chen et al. 2021; EXACT, Liu et al. 2022), whose errors have mean 0
in the gradients of weights. The gradient of a ReLU, of which a bit of each value is kept in all ways, is exact, except after a
LayerNorm, whose input is rounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hpcgnn.kernels import buffers, keyed
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.quantizer import Quantizer
from hpcgnn.nn.config import EIGHT_BITS, KEEP, RECOMPUTE

_NOISE = 0xAC  # distinguishes these keys from other keys
_LEAST_WIDTH = 16  # narrower rows, such as attention weights, would be coded with many scales
_LEAST_VALUES = 1 << 10
Form = tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]  # tensors, and what makes something of them


class Activations:
    """The mode of a model, which its layers share. rank: keys the noise of ``8bit``, with the seed and the epoch."""

    def __init__(self, mode: str = KEEP, backend: str = "auto") -> None:
        self.mode, self._quantizer = mode, Quantizer(backend)

    def begin_epoch(self, seed: int, epoch: int, rank: int) -> None:
        """Begin a training step: rounding uses random numbers of this epoch from now on."""
        if self.mode == EIGHT_BITS:
            self._quantizer.begin(keyed.derive_key(seed, epoch, rank, _NOISE))

    @property
    def repeats(self) -> bool:
        """Return whether backward repeats local arithmetic."""
        return self.mode == RECOMPUTE

    def keeping(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass."""
        if self.mode != EIGHT_BITS or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        # parameters and features stay in memory as they are
        return saved_tensors_hooks(lambda x: x if x.is_leaf else self._coded(x), self._unpacked)

    def _coded(self, x: Tensor) -> Tensor | Int8Rows:
        is_narrow = x.dim() != 2 or x.shape[1] < _LEAST_WIDTH or x.numel() < _LEAST_VALUES
        if is_narrow or x.dtype != torch.float32:
            return x
        return self._quantizer.rows(x)

    def form(self, tensors: list[Tensor], make: Callable[[Sequence[Tensor]], Any]) -> Form:
        """The form in which ``make(tensors)`` is kept, for tensors that a function makes in its forward pass, in which they look
        like parameters to autograd's hooks."""
        if self.mode != EIGHT_BITS:
            return tensors, make
        packed = [self._coded(each) for each in tensors]
        counts = [2 if isinstance(each, Int8Rows) else 1 for each in packed]
        flat = [one for each in packed for one in ((each.codes, each.scale) if isinstance(each, Int8Rows) else (each,))]

        def unpacked(given: Sequence[Tensor]) -> Any:
            left = iter(given)
            return make(
                [self._unpacked(Int8Rows(next(left), next(left)) if count == 2 else next(left)) for count in counts]
            )

        return flat, unpacked

    @staticmethod
    def _unpacked(kept: Tensor | Int8Rows) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        rows, width = kept.codes.shape
        out = buffers.empty(rows, width, torch.float32, kept.codes.device)
        # The product of both would copy the codes as floats for a moment.
        return out.copy_(kept.codes).mul_(kept.scale[:, None])


def opened(form: Form) -> Any:
    """The objects of which a form was made, once more."""
    tensors, make = form
    return make(tensors)


def save(ctx: Any, given: Sequence[Tensor | None], forms: Sequence[Form]) -> None:
    """Save arguments of a function, and forms, for :func:`saved` in its backward pass."""
    ctx.save_for_backward(*given, *(each for tensors, _ in forms for each in tensors))
    ctx.counts, ctx.makers = [len(given), *(len(tensors) for tensors, _ in forms)], [make for _, make in forms]


def saved(ctx: Any) -> tuple[list[Any], list[Form]]:
    """The arguments and the forms of :func:`save`. Unless the graph is retained, the caller alone holds their tensors, and can
    free one before it makes another."""
    left = iter(ctx.saved_tensors)
    given, *forms = [[next(left) for _ in range(count)] for count in ctx.counts]
    getattr(ctx, "maybe_clear_saved_tensors", int)()
    return given, list(zip(forms, ctx.makers, strict=True))
