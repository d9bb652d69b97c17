"""The common part of models that are a stack of layers."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import ClassVar

import torch

from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import GraphModel, ModelContext
from hpcgnn.nn.layers import LinearLayer, linear_first
from hpcgnn.nn.linear import Features


class Stack(GraphModel):
    """[dropout, layer, norm, activation] repeated, without norm and activation after the last layer."""

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        widths = self.widths(context)
        self.layers = torch.nn.ModuleList()
        self.norms = torch.nn.ModuleList()
        self.dropouts = torch.nn.ModuleList()
        for depth, (width, next_width) in enumerate(pairwise(widths)):
            self.layers.append(self.new_layer(context, depth, width, next_width))
            if depth:
                self.dropouts.append(self.new_dropout(config.dropout))
            if depth < len(widths) - 2:
                self.norms.append(self.new_norm(next_width, self.layers[-1]))

    @abstractmethod
    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """Make the layer at this depth."""

    def scores(self, x: Features) -> torch.Tensor:
        """See :meth:`GraphModel.scores`."""
        return self.apply_layers(x, self.layers, self.norms, self.dropouts)


class LinearStack(Stack):
    """A stack of layers over a linear aggregator. layer: the class of the layers."""

    layer: ClassVar[type[LinearLayer]]
    begins_with_exchange = True

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """Make the layer at this depth."""
        is_input, keep = depth == 0, depth == 0 and context.keep_input_aggregation
        needs_gradient = self.config.label_inputs or not is_input
        first = linear_first(width, next_width, needs_gradient=needs_gradient, is_sparse=context.is_sparse and is_input)
        own = self.new_aggregator(keep=keep)
        return self.layer(width, next_width, own, transform_first=first and not keep, compute=self.compute)
