"""One bucket for everything that ranks reduce in a training step."""

from __future__ import annotations

import torch

from hpcgnn.arguments import check_type, check_world
from hpcgnn.comm import Buffer, World


class GradientBucket:
    """Means of gradients and sums of a few scalars over ranks, in two all-reduces at once.

    Gradients travel in the parameters' type: on a slow network they weigh as much as an exchange of few bits. Scalars such as
    the loss, counts and stop requests are few, and float64. Both buffers are allocated once.
    """

    def __init__(self, world: World, parameters: list[torch.nn.Parameter], num_scalars: int) -> None:
        self._world = world
        self._parameters = parameters
        size = sum(parameter.numel() for parameter in parameters)
        self._mine, self._sums = (torch.zeros(size, dtype=parameters[0].dtype) for _ in range(2))
        self._my_scalars, self._scalar_sums = (torch.zeros(num_scalars + 1, dtype=torch.float64) for _ in range(2))
        pairs = (self._my_scalars, self._scalar_sums), (self._mine, self._sums)
        self._buffers = [(Buffer.of(mine), Buffer.of(sums)) for mine, sums in pairs]

    def reduce(self, scalars: list[float], count: int) -> tuple[list[float], int]:
        """Replace every gradient, of a sum over ``count`` nodes of this rank, by that of the mean over all ranks' nodes.

        No rank need know beforehand how many there are. Returns the sums of ``scalars`` and of ``count``; where the latter
        is 0, gradients are only summed. Collective.
        """
        for parameter, piece in zip(self._parameters, self._pieces(self._mine), strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
        self._my_scalars.copy_(torch.tensor([*scalars, count], dtype=torch.float64))
        for pending in [self._world.start_allreduce(*pair, "sum", "gradients") for pair in self._buffers]:
            self._world.wait(pending)
        *totals, total_count = self._scalar_sums.tolist()
        self._sums /= max(total_count, 1)
        for parameter, piece in zip(self._parameters, self._pieces(self._sums), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(piece)
        return totals, int(total_count)

    def _pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        pieces = flat[: sum(sizes)].split(sizes)
        return [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]


def sum_gradients(model: torch.nn.Module, world: World | None = None) -> None:
    """Replace every gradient of ``model`` by the sum over all ranks, between ``backward`` and the optimiser's step. Collective.

    For training loops of one's own: with a loss that each rank sums over its own nodes, and divides by the number of all
    ranks' (:meth:`hpcgnn.comm.World.allreduce`), the result is the gradient of the whole graph's mean loss. world: None takes
    that of a model from :func:`hpcgnn.distribute`.
    """
    check_type("model", model, torch.nn.Module)
    check_world(world)
    if world is None:
        from hpcgnn.nn.pyg.distribution import distribution_of

        world = distribution_of(model).graph.world
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    total = world.allreduce(flat, what="gradients")
    for parameter, piece in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter).clone()
