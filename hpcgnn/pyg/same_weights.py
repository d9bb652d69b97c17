"""A check that the weights of a distributed model are the same on all ranks, for training loops without a trainer."""

from __future__ import annotations

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import World

_RELATIVE = 1e-3  # of a parameter's change; a sum over ranks may have another last bit on each of them
_ROUNDING = 1e-9


class SameWeights:
    """Compares sums of parameters, and later their changes, in calls 1, 2, 4, 8 and so on of a model."""

    def __init__(self, world: World) -> None:
        self._world, self._calls = world, 0
        self._before: torch.Tensor | None = None

    @torch.no_grad()
    def check(self, model: torch.nn.Module) -> None:
        """Check the weights in a call of the model. Collective.

        Raises:
            HpcgnnError: on every rank, if most parameters differ between ranks. Single ones may, because rounding errors are
                all that moves a bias before a norm.
        """
        self._calls += 1
        if self._world.size == 1 or self._calls & (self._calls - 1):
            return
        named = dict(model.named_parameters())
        sums = [(p.sum(dtype=torch.float64), p.abs().sum(dtype=torch.float64)) for p in named.values()]
        if not sums:
            return
        now, size = torch.tensor([[float(total), float(of_absolute)] for total, of_absolute in sums]).double().T
        change = now if self._before is None else now - self._before
        self._before = now
        most, least = self._world.allreduce(torch.cat((change, -change)), "max", "sums of weights").chunk(2)
        scale = torch.maximum(most.abs(), least.abs())
        differs = (most + least > _RELATIVE * scale + _ROUNDING * size.clamp(min=1)).tolist()
        if 2 * sum(differs) > len(named):
            first = next(name for name, wrong in zip(named, differs, strict=True) if wrong)
            raise HpcgnnError(
                f"the weights of {type(model).__name__} differ between ranks (first {first}): call hpcgnn.sum_gradients(model) "
                "between loss.backward() and the optimiser's step, and load or change weights on all ranks alike",
                agreed=True,
            )
