"""The common part of models that propagate without weights, or that mix in the first result."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch

from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import GraphModel, ModelContext, Part
from hpcgnn.nn.layers import Dense
from hpcgnn.nn.linear import Features
from hpcgnn.nn.model_settings import HopSettings, LayerSettings


class Propagation(GraphModel):
    """A dense network of ``layers`` layers, [dropout, dense, activation] repeated, followed by exchanges for ``hops`` hops."""

    settings: ClassVar[tuple[type, ...]] = (LayerSettings, HopSettings)
    kept_rows = 2

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        widths = self.widths(context)
        how = {"compute": context.compute, "backend": self.backend}
        self.dense = torch.nn.ModuleList(Dense(width, next_width, **how) for width, next_width in pairwise(widths))
        self.norms = torch.nn.ModuleList(map(self.new_norm, widths[1:-1], self.dense))
        self.dropouts = torch.nn.ModuleList(self.new_dropout(config.dropout) for _ in self.norms)
        self.hops = [self.new_aggregator() for _ in range(config.num_hops)]

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`."""
        return [self.dense[-1], self.hops[-1]]

    def transformed(self, x: Features) -> torch.Tensor:
        """(n, C) result of the dense network, which treats each node by itself."""
        return self.apply_layers(x, self.dense, self.norms, self.dropouts)
