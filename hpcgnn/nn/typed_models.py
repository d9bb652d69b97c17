"""Models with attention by types of edges and of nodes. R-GCN is in :mod:`hpcgnn.nn.models`."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.attention import Heads
from hpcgnn.nn.config import (
    PIECES,
    WITHIN,
    AttentionSettings,
    BasesSettings,
    HaloSettings,
    HeadSettings,
    LayerSettings,
    ModelConfig,
    RGATSettings,
    register,
)
from hpcgnn.nn.graph_model import Connection, GraphModel, ModelContext
from hpcgnn.nn.halo import make_halo
from hpcgnn.nn.layers import KeyedDropout
from hpcgnn.nn.linear import Features
from hpcgnn.nn.models import AttentionStack, check_dense
from hpcgnn.nn.pieces import HaloPieces, make_pieces
from hpcgnn.nn.relational import HGTLayer, RGATLayer, TypedEdges, typed_edges


def connected_by_type(config: ModelConfig, graph: LocalGraph, edges: TypedEdges, how: dict[str, Any]) -> Connection:
    """The connection by a halo, whole or in pieces. Collective."""
    if config.halo == PIECES:
        pieces = make_pieces(graph, edges, keyed=config.attention_dropout > 0, **how)
        return Connection(pieces.pieces[0].mover, typed=edges, pieces=pieces)
    return Connection(make_halo(graph, **how), typed=edges)


def over_edges(
    model: GraphModel, connection: Connection, rate: float
) -> tuple[Aggregator | HaloPieces, TypedEdges, tuple[KeyedDropout, ...]]:
    """The halo of a model's next layer, the edges, and the dropouts of their weights."""
    edges, pieces = connection.typed, connection.pieces
    assert edges is not None
    if pieces is None:
        ids = edges.ids if rate else None  # 8 bytes an edge
        return model.add_aggregator(model.aggregator), edges, model.new_edge_dropouts(rate, ids)
    return (
        pieces.with_movers(model.add_aggregator),
        edges,
        model.new_edge_dropouts(rate, *(block.ids for block in pieces.blocks)),
    )


@register("rgat")
class RGAT(AttentionStack):
    """A stack of :class:`RGATLayer`. Rows travel unchanged over the halo, whatever ``strategy`` is."""

    settings = (LayerSettings, BasesSettings, RGATSettings, HaloSettings, AttentionSettings)
    uses_edge_features = True
    kept_rows = 2
    work = ""

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        check_dense(config, graph)
        within = config.attention_mechanism == WITHIN
        edges = typed_edges(graph, targets=True, within=within, attr_type=how.pop("dtype"))
        return connected_by_type(config, graph, edges, how)

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        config, edges = self.config, context.connection.typed
        assert edges is not None
        is_last, rate = depth == config.layers - 1, config.attention_dropout
        count = config.output_heads if is_last else config.heads
        return RGATLayer(
            width,
            Heads(count, next_width if is_last else next_width // count, join=not is_last),
            *over_edges(self, context.connection, rate),
            bases=config.bases,
            compute=self.compute,
        )


@register("hgt")
class HGT(GraphModel):
    """The input layer of a graph with types of nodes, else a dense layer, and activation; ``layers`` times [dropout,
    :class:`HGTLayer`, norm, activation]; dropout and a dense layer."""

    settings = (LayerSettings, HaloSettings, HeadSettings)
    kept_rows = 4
    ends_hidden = True

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        how.pop("dtype")
        return connected_by_type(config, graph, typed_edges(graph, nodes=True), how)

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
            self.layers.append(HGTLayer(heads, *over_edges(self, context.connection, rate), self.compute))
            self.norms.append(self.new_norm(width))
            self.dropouts.append(self.new_dropout(config.dropout))
        self.last_dropout = self.new_dropout(config.dropout)
        self.last = self.new_dense(width, context.out_width)

    def scores(self, x: Features) -> torch.Tensor:
        y = x if self.first is None else self.first(x)
        assert isinstance(y, torch.Tensor)
        y = self.activated(y)
        for layer, norm, drop in zip(self.layers, self.norms, self.dropouts, strict=True):
            y = self.part(layer, lambda y, *of: self.activated(of[1](of[0](y)), of[2]), y, drop, layer, norm)
        return self.last(self.last_dropout(y))
