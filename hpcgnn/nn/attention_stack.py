"""The common part of models with attention."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from hpcgnn.base.errors import WrongValueError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.attention import GATLayer, GATv2Layer, Heads, Neighbours, PartialGATLayer
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import Connection, ModelContext, Part
from hpcgnn.nn.halo import attention_edges, make_halo
from hpcgnn.nn.model_settings import AttentionSettings, LayerSettings
from hpcgnn.nn.stack import Stack


class AttentionStack(Stack):
    """A stack of layers with attention. All but the last one concatenate their heads; the last one averages them. layer: the
    class of the layers.
    """

    settings: ClassVar[tuple[type, ...]] = (LayerSettings, AttentionSettings)
    layer: ClassVar[type[GATLayer] | type[GATv2Layer]]
    kept_rows = 4

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """See :meth:`GraphModel.connected`. Rows of neighbours travel unchanged, so the strategy has no effect."""
        named = {name: value for name, value in how.items() if name != "dtype"}
        return Connection(make_halo(graph, **named), edges=attention_edges(graph))

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        """See :meth:`GraphModel.uses_strategy`."""
        return False

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        """See :meth:`GraphModel.check_settings`."""
        if config.hidden % config.heads:
            raise WrongValueError(
                f"heads must divide hidden: {config.heads} heads cannot share a width of {config.hidden}"
            )

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """Make the layer at this depth."""
        halo, edges, rate = self.new_aggregator(), context.connection.edges, self.config.attention_dropout
        assert edges is not None
        assert isinstance(halo, Aggregator)
        (drop,) = self.new_edge_dropouts(rate, edges.ids if rate else None)  # ids are 8 bytes an edge
        return self.layer(width, self.heads(depth, next_width), Neighbours(halo, edges, drop), self.compute)

    def before_softmax(self) -> list[Part]:
        """See :meth:`GraphModel.before_softmax`: the last layer, and the aggregator that brings its rows."""
        layer = self.layers[-1]
        if isinstance(layer, PartialGATLayer):
            return [layer, layer.plan.scores, layer.plan.rows]
        assert isinstance(layer, GATLayer | GATv2Layer)
        return [layer, layer.neighbours.halo]

    def heads(self, depth: int, next_width: int) -> Heads:
        """The heads of the layer at this depth, whose result is ``next_width`` wide."""
        is_last = depth == self.config.layers - 1
        count = self.config.output_heads if is_last else self.config.heads
        return Heads(count, next_width if is_last else next_width // count, join=not is_last)
