"""Dropout whose masks are keyed by original node id, so that they are the same for any number of ranks and need no saved
generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.base.host import index_array
from hpcgnn.kernels import Csr, DropoutMask, keyed, keyed_on_device
from hpcgnn.kernels.dropout import drop


@dataclass
class DropoutKeys:
    """The values, beside layer and column, on which a mask depends. The trainer advances ``epoch``.

    ids: (n,) int64 original ids of the owned nodes.
    """

    ids: torch.Tensor
    seed: int = 0
    epoch: int = 0


class KeyedDropout(torch.nn.Module):
    """Set elements to zero with ``probability`` and scale the others by ``1 / (1 - probability)``; the identity in eval mode.

    ``layer`` distinguishes the dropouts of a model. Sparse features (Csr) are dropped exactly as dense ones would be. ids: (n,)
    int64 original ids of the rows, if these are not the owned nodes.
    """

    def __init__(
        self,
        keys: DropoutKeys,
        layer: int,
        probability: float,
        backend: str = "auto",
        *,
        ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.keys, self.layer, self.probability, self.backend, self.ids = keys, layer, probability, backend, ids

    def forward(self, x: torch.Tensor | Csr) -> torch.Tensor | Csr:
        """Apply dropout to x (n, F)."""
        mask = self.mask()
        if mask is None:
            return x
        if isinstance(x, Csr):
            return _drop_sparse(x, mask)
        return _Dropout.apply(x, mask, self.backend)

    def mask(self) -> DropoutMask | None:
        """The mask of this pass, for kernels that apply dropout themselves; None if nothing is dropped."""
        if not self.training or self.probability == 0:
            return None
        key = keyed.derive_key(self.keys.seed, self.keys.epoch, self.layer)
        return DropoutMask(self.keys.ids if self.ids is None else self.ids, key, self.probability)

    def extra_repr(self) -> str:
        """The settings that are shown when the model is printed."""
        return f"p={self.probability}"


class _Dropout(torch.autograd.Function):
    """Dropout whose backward pass computes the mask again, so that it is not kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: DropoutMask, backend: str) -> torch.Tensor:
        ctx.mask, ctx.backend = mask, backend
        return drop(x.detach(), mask, backend)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Dropout.apply(gradients[0], ctx.mask, ctx.backend), None, None  # differentiable once more


def _drop_sparse(x: Csr, mask: DropoutMask) -> Csr:
    assert x.weight is not None, "sparse features have values"
    if not x.weight.is_cpu:
        draws = keyed_on_device.draws(keyed_on_device.row_hashes(mask.key, mask.ids)[x.entry_rows()], x.indices)
        return x.with_weight(torch.where(draws >= mask.threshold, x.weight / (1 - mask.probability), 0))
    hashes = np.repeat(keyed.row_hashes(mask.key, index_array(mask.ids)), index_array(x.row_lengths()))
    kept = keyed.draws(hashes, index_array(x.indices)) >= np.uint32(mask.threshold)
    return x.with_weight(torch.where(torch.from_numpy(kept), x.weight / (1 - mask.probability), 0))
