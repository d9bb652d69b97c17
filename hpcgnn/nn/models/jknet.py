"""Jumping knowledge (Xu et al. 2018)."""

from __future__ import annotations

import torch

from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import ModelContext, Part
from hpcgnn.nn.layers import Dense, GCNLayer
from hpcgnn.nn.linear import Features
from hpcgnn.nn.stack import LinearStack


@register("jknet")
class JKNet(LinearStack):
    """A stack of GCN layers whose results are concatenated for a dense last layer (PyG's ``jk="cat"``)."""

    layer = GCNLayer
    kept_rows = 4

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.norms.append(self.new_norm(config.hidden, self.layers[-1]))
        self.final_dropout = self.new_dropout(config.dropout)
        joined = config.layers * config.hidden
        self.final = Dense(joined, context.out_width, compute=self.compute, backend=self.backend)

    def widths(self, context: ModelContext) -> list[int]:
        """See :meth:`GraphModel.widths`: all layers are hidden layers here."""
        return [context.in_width, *[self.config.hidden] * self.config.layers]

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`."""
        return [self.final]

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        (first, *layers), (first_norm, *norms) = self.layers, self.norms
        results = [self.activated(first(x), first_norm)]
        for layer, norm, drop in zip(layers, norms, self.dropouts, strict=True):
            results.append(self.activated(layer(drop(results[-1])), norm))
        return self.final(self.final_dropout(torch.cat(results, dim=1)))
