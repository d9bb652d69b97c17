"""One bucket for everything that ranks reduce in a training step."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm import World


class GradientBucket:
    """Means of gradients and sums of a few scalars over ranks, in a single all-reduce.

    The bucket is float64 and allocated once: sums do not lose digits to the number of ranks, and scalars such as the loss
    and stop requests ride along exactly.
    """

    def __init__(self, world: World, parameters: list[torch.nn.Parameter], num_scalars: int) -> None:
        self._world = world
        self._parameters = parameters
        size = sum(parameter.numel() for parameter in parameters) + num_scalars + 1
        self._mine, self._sums = np.zeros(size), np.zeros(size)
        self._scalars = slice(size - num_scalars - 1, size)

    def reduce(self, scalars: list[float], count: int) -> tuple[list[float], int]:
        """Replace every gradient, of a sum over ``count`` nodes of this rank, by that of the mean over all ranks' nodes.

        No rank need know beforehand how many there are. Returns the sums of ``scalars`` and of ``count``; where the latter
        is 0, gradients are only summed. Collective.
        """
        mine, sums = torch.from_numpy(self._mine), torch.from_numpy(self._sums)
        for parameter, piece in zip(self._parameters, self._pieces(mine), strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
        self._mine[self._scalars] = [*scalars, count]
        self._world.wait(self._world.start_allreduce(self._mine, self._sums, "sum", "gradients"))
        *totals, total_count = self._sums[self._scalars].tolist()
        sums /= max(total_count, 1)
        for parameter, piece in zip(self._parameters, self._pieces(sums), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(piece)
        return totals, int(total_count)

    def _pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        pieces = flat[: sum(sizes)].split(sizes)
        return [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]
