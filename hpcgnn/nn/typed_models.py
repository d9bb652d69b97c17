"""Models with attention by types of edges and of nodes. R-GCN is in :mod:`hpcgnn.nn.models`."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.attention import Heads
from hpcgnn.nn.config import (
    WITHIN,
    AttentionSettings,
    BasesSettings,
    HeadSettings,
    LayerSettings,
    ModelConfig,
    RGATSettings,
    register,
)
from hpcgnn.nn.graph_model import Connection, GraphModel, ModelContext, Part
from hpcgnn.nn.halo import make_halo
from hpcgnn.nn.linear import Features
from hpcgnn.nn.models import AttentionStack, check_dense
from hpcgnn.nn.relational import HGTLayer, RGATLayer, typed_edges


@register("rgat")
class RGAT(AttentionStack):
    """A stack of :class:`RGATLayer`. Rows travel unchanged over the halo, whatever ``strategy`` is."""

    settings = (LayerSettings, BasesSettings, RGATSettings, AttentionSettings)
    uses_edge_features = True
    kept_rows = 2
    work = ""

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        check_dense(config, graph)
        edges = typed_edges(graph, targets=True, attr_type=how.pop("dtype"))
        return Connection(make_halo(graph, **how), typed=edges)

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        config, edges = self.config, context.connection.typed
        assert edges is not None
        is_last, rate = depth == config.layers - 1, config.attention_dropout
        count = config.output_heads if is_last else config.heads
        return RGATLayer(
            width,
            Heads(count, next_width if is_last else next_width // count, join=not is_last),
            self.add_aggregator(self.aggregator),
            edges,
            self.new_edge_dropouts(rate, edges.ids if rate else None),  # 8 bytes an edge
            bases=config.bases,
            within=config.attention_mechanism == WITHIN,
            compute=self.compute,
        )


@register("hgt")
class HGT(GraphModel):
    """The input layer of a graph with types of nodes, else a dense layer, and activation; ``layers`` times [dropout,
    :class:`HGTLayer`, norm, activation]; dropout and a dense layer."""

    settings = (LayerSettings, HeadSettings)
    usual_norm = "layer"
    kept_rows = 4
    ends_hidden = True

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        edges = typed_edges(graph, nodes=True)
        return Connection(
            make_halo(graph, **{name: value for name, value in how.items() if name != "dtype"}), typed=edges
        )

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        return False

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        config.section(HeadSettings).check_width(config.hidden)

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        edges, width, rate = context.connection.typed, config.hidden, config.attention_dropout
        assert edges is not None
        self.first = None if context.has_input_layer else self.new_dense(context.in_width, width)
        heads = Heads(config.heads, width // config.heads, join=True)
        self.layers, self.norms, self.dropouts = (torch.nn.ModuleList() for _ in range(3))
        for _ in range(config.layers):
            drops = self.new_edge_dropouts(rate, edges.ids if rate else None)
            self.layers.append(HGTLayer(heads, self.add_aggregator(self.aggregator), edges, drops, self.compute))
            self.norms.append(self.new_norm(width))
            self.dropouts.append(self.new_dropout(config.dropout))
        self.last_dropout = self.new_dropout(config.dropout)
        self.last = self.new_dense(width, context.out_width)

    def before_softmax(self) -> list[Part]:
        return [self.last]

    def scores(self, x: Features) -> torch.Tensor:
        y = x if self.first is None else self.first(x)
        assert isinstance(y, torch.Tensor)
        y = self.activated(y)
        for layer, norm, drop in zip(self.layers, self.norms, self.dropouts, strict=True):
            y = self.part(layer, lambda y, *of: self.activated(of[1](of[0](y)), of[2]), y, drop, layer, norm)
        return self.last(self.last_dropout(y))
