"""Batch normalisation with statistics over the nodes of all ranks."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.world import World


class _SumOverRanks(torch.autograd.Function):
    """All-reduce in forward and in backward. Collective in both."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, world: World) -> torch.Tensor:
        ctx.world = world
        return world.allreduce(values.detach(), what="sums over nodes")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _SumOverRanks.apply(gradients[0], ctx.world), None  # differentiable once more


def sum_over_ranks(values: torch.Tensor, world: World) -> torch.Tensor:
    """The sum of all ranks' ``values``, differentiable. Collective, forward and backward."""
    return _SumOverRanks.apply(values, world)


def mean_over_ranks(x: torch.Tensor, world: World) -> tuple[torch.Tensor, float]:
    """The (F,) float64 mean of all ranks' (n, F) rows, and the number of rows. Collective, forward and backward."""
    count = torch.full((1,), x.shape[0], dtype=torch.float64, device=x.device)
    sums = sum_over_ranks(torch.cat((x.double().sum(0), count)), world)
    total = float(sums[-1].detach())
    return sums[:-1] / total, total


def moments_over_ranks(x: torch.Tensor, world: World) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The mean and the variance around it, both (F,) float64, and the number of rows. Collective, forward and backward."""
    mean, total = mean_over_ranks(x, world)
    return mean, sum_over_ranks(((x.double() - mean) ** 2).sum(0), world) / total, total


class BatchNorm(torch.nn.Module):
    """``torch.nn.BatchNorm1d`` over the nodes of all ranks, with the same formula, parameters and buffers. Collective.

    Forward takes x (n, F). Sums travel as float64, so that any number of ranks gives the same statistics.
    """

    def __init__(self, num_features: int, world: World, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.world, self.eps, self.momentum = world, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.running_mean: torch.Tensor
        self.running_var: torch.Tensor
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x (n, F). Collective in training."""
        if self.training:
            mean, variance = self._statistics(x)
        else:
            mean, variance = self.running_mean, self.running_var
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, variance, total = moments_over_ranks(x, self.world)
        with torch.no_grad():
            unbiased = variance * (total / max(total - 1, 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return mean.to(x.dtype), variance.to(x.dtype)
