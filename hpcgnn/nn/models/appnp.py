"""APPNP (Klicpera et al.)."""

from __future__ import annotations

import torch

from hpcgnn.nn.config import register
from hpcgnn.nn.linear import Features
from hpcgnn.nn.propagation import Propagation


@register("appnp")
class APPNP(Propagation):
    """Personalised PageRank of predictions: ``z <- (1 - teleport) Â z + teleport h``; PyG's ``APPNP``."""

    has_dense_parameters = True

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of the first layer, as in the paper."""
        return list(self.dense[0].parameters())

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        h = self.transformed(x)
        z = h
        for hop in self.hops:
            under_way = hop.begin(z)
            restart = self.config.teleport * h  # while rows travel
            z = torch.add(restart, under_way.finish(), alpha=1 - self.config.teleport)
        return z
