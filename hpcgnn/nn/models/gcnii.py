"""GCNII (Chen et al.): any number of layers, each close to the identity and with a share of the first layer's result."""

from __future__ import annotations

import torch

from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import GraphModel, ModelContext, Part
from hpcgnn.nn.layers import Dense, GCNIILayer
from hpcgnn.nn.linear import Features


@register("gcnii")
class GCNII(GraphModel):
    """A dense layer and activation; ``layers`` times [dropout, GCNII layer, norm, activation]; dropout and a dense layer."""

    has_dense_parameters = True
    kept_rows = 2
    ends_hidden = True

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        width = config.hidden
        self.first = Dense(context.in_width, width, compute=context.compute, backend=self.backend)
        self.layers, self.norms, self.dropouts = (torch.nn.ModuleList() for _ in range(3))
        for depth in range(1, config.layers + 1):
            own = self.new_aggregator()
            assert isinstance(own, Aggregator)
            shares = {"alpha": config.teleport, "theta": config.identity}
            self.layers.append(GCNIILayer(width, own, depth=depth, compute=context.compute, **shares))
            self.norms.append(self.new_norm(width, self.layers[-1]))
            self.dropouts.append(self.new_dropout(config.dropout))
        self.last_dropout = self.new_dropout(config.dropout)
        self.last = Dense(width, context.out_width, compute=context.compute, backend=self.backend)

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """See :meth:`GraphModel.dense_parameters`."""
        return [*self.first.parameters(), *self.last.parameters()]

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`."""
        return [self.last]

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        first = self.activated(self.first(x))
        y = first
        for layer, norm, drop in zip(self.layers, self.norms, self.dropouts, strict=True):
            y = self.activated(layer(drop(y), first), norm)
        return self.last(self.last_dropout(y))
