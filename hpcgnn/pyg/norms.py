"""Norms with statistics over nodes, of torch and PyG, computed over the nodes of all ranks.

An instance is changed to one of these classes in place, so that its parameters and buffers keep their names. All forward and
backward passes are collective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn.norm as pyg

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels.again import is_again
from hpcgnn.nn.whole_graph import mean_over_ranks, moments_over_ranks
from hpcgnn.pyg.bridge import widened
from hpcgnn.world import World


class _OverRanks:
    """A norm of (n, F) rows over the nodes of all ranks."""

    world: World

    def mean_of_nodes(self, x: torch.Tensor, batch: Any = None) -> torch.Tensor:
        """The (F,) mean over all nodes of (n, F) ``x``. batch: the norm's argument, which must be None."""
        if batch is not None:
            raise HpcgnnError(
                f"{type(self).__name__} was given batch, for several graphs at once: a distributed model has one graph"
            )
        return mean_over_ranks(x, self.world)[0].to(x.dtype)


def _in_float32(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``forward`` of a norm, computed in float32 where ``torch.autocast`` gives it rows of 16 bits."""

    @functools.wraps(forward)
    def wide(norm: torch.nn.Module, x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():  # nothing in here is the model's
            if torch.is_autocast_enabled(x.device.type):
                with torch.autocast(x.device.type, enabled=False):
                    y = forward(norm, widened(x), *others, **named).to(x.dtype)
            else:
                y = forward(norm, x, *others, **named)
        return y.view_as(x)  # so that its rows are known

    return wide


class BatchNorm1d(_OverRanks, torch.nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d`, which PyG's ``BatchNorm`` contains."""

    @_in_float32
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and self.running_mean is not None and self.running_var is not None:
            mean, variance = self.running_mean, self.running_var
        else:
            *moments, total = moments_over_ranks(x, self.world)
            mean, variance = (each.to(x.dtype) for each in moments)
            if self.training and self.track_running_stats and not is_again():
                self._remember(mean.detach(), variance.detach() * total / max(total - 1, 1))
        y = (x - mean) * (variance + self.eps).rsqrt()
        return y * self.weight + self.bias if self.affine else y

    @torch.no_grad()
    def _remember(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class LayerNorm(_OverRanks, pyg.LayerNorm):
    """PyG's ``LayerNorm``: over each node, or (``mode="graph"``) with one mean and deviation over the values of all nodes."""

    @_in_float32
    def forward(self, x: torch.Tensor, batch: Any = None, batch_size: int | None = None) -> torch.Tensor:
        if self.mode == "node":
            return super().forward(x, batch, batch_size)
        mean = self.mean_of_nodes(x.mean(1, keepdim=True), batch)
        x = x - mean
        variance = self.mean_of_nodes((x**2).mean(1, keepdim=True))
        y = x / (variance.sqrt() + self.eps)
        return y * self.weight + self.bias if self.affine else y


class GraphNorm(_OverRanks, pyg.GraphNorm):
    """PyG's ``GraphNorm``."""

    @_in_float32
    def forward(self, x: torch.Tensor, batch: Any = None, batch_size: int | None = None) -> torch.Tensor:
        mean = self.mean_of_nodes(x, batch)
        y = x - mean * self.mean_scale
        variance = self.mean_of_nodes(y**2)
        return self.weight * y / (variance + self.eps).sqrt() + self.bias


class PairNorm(_OverRanks, pyg.PairNorm):
    """PyG's ``PairNorm``."""

    @_in_float32
    def forward(self, x: torch.Tensor, batch: Any = None, batch_size: int | None = None) -> torch.Tensor:
        mean = self.mean_of_nodes(x, batch)
        x = x - mean
        if self.scale_individually:
            return self.scale * x / (self.eps + x.norm(2, -1, keepdim=True))
        square = self.mean_of_nodes((x**2).sum(1, keepdim=True))
        return self.scale * x / (self.eps + square).sqrt()


GLOBAL: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.BatchNorm1d: BatchNorm1d,
    pyg.LayerNorm: LayerNorm,
    pyg.GraphNorm: GraphNorm,
    pyg.PairNorm: PairNorm,
}
# Norms with statistics over nodes that are none of the above.
REFUSED = (
    pyg.InstanceNorm,
    pyg.GraphSizeNorm,
    pyg.MeanSubtractionNorm,
    pyg.DiffGroupNorm,
    torch.nn.InstanceNorm1d,
)


def adapt(module: torch.nn.Module, world: World, name: str) -> None:
    """Change ``module`` to a norm over the nodes of all ranks, if it is a norm over nodes. name: of the module in its model."""
    if isinstance(module, REFUSED):
        known = ", ".join(sorted({kind.__name__ for kind in GLOBAL}))
        raise HpcgnnError(
            f"{name} ({type(module).__name__}) cannot be distributed: it takes statistics over all nodes, which it would "
            f"take over each rank's own; use one of {known}"
        )
    if type(module) in GLOBAL:
        module.__class__ = GLOBAL[type(module)]
        object.__setattr__(module, "world", world)


def restore(module: torch.nn.Module) -> None:
    """Undo :func:`adapt`."""
    plain = {norm: of for of, norm in GLOBAL.items()}.get(type(module))
    if plain is not None:
        module.__class__ = plain
        delattr(module, "world")
