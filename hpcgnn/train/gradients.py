"""One bucket for everything that ranks reduce in a training step."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm import World


class GradientBucket:
    """Sums all gradients and a few scalars over ranks in a single all-reduce.

    The bucket is float64 and allocated once: sums do not lose digits to the number of ranks, and scalars such as the loss
    and stop requests ride along exactly.
    """

    def __init__(self, world: World, parameters: list[torch.nn.Parameter], num_scalars: int) -> None:
        self._world = world
        self._parameters = parameters
        size = sum(parameter.numel() for parameter in parameters) + num_scalars
        self._mine, self._sums = np.zeros(size), np.zeros(size)
        self._scalars = slice(size - num_scalars, size)

    def reduce(self, scalars: list[float]) -> list[float]:
        """Replace every gradient by its sum over ranks; return the sums of ``scalars``. Collective."""
        mine, sums = torch.from_numpy(self._mine), torch.from_numpy(self._sums)
        for parameter, piece in zip(self._parameters, self._pieces(mine), strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
        self._mine[self._scalars] = scalars
        self._world.wait(self._world.start_allreduce(self._mine, self._sums, "sum", "gradients"))
        for parameter, piece in zip(self._parameters, self._pieces(sums), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(piece)
        return self._sums[self._scalars].tolist()

    def _pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        pieces = flat[: sum(sizes)].split(sizes)
        return [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]
