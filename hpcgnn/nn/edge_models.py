"""Models that were made for features of edges (``graph.edge_attr``). GATv2, which may have them, is in
:mod:`hpcgnn.nn.models`."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.attention import TransformerLayer
from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import Connection, ModelContext
from hpcgnn.nn.halo import attention_edges, make_halo
from hpcgnn.nn.layers import GINELayer
from hpcgnn.nn.models import AttentionStack, Stack, check_dense, with_second


@register("gine")
class GINE(Stack):
    """A stack of :class:`GINELayer`. Rows travel unchanged over the halo, whatever ``strategy`` is."""

    usual_norm = "batch"
    begins_with_exchange = True
    uses_edge_features = True
    kept_rows = 4

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        check_dense(config, graph)
        if not graph.meta.num_edge_features:
            raise HpcgnnError(
                f"{graph.path} has no features of edges, which gine needs: convert a graph with edge_attr, or take gin",
                agreed=True,
            )
        dtype = how.pop("dtype")
        return Connection(make_halo(graph, **how), edges=attention_edges(graph, self_loops=False, attr_type=dtype))

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        return False

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        edges = context.connection.edges
        assert edges is not None
        own = self.new_aggregator(keep=depth == 0 and context.keep_input_aggregation)
        return with_second(self, GINELayer(width, self.config.hidden, own, edges, self.compute), next_width)


@register("transformer")
class Transformer(AttentionStack):
    """A stack of :class:`TransformerLayer`."""

    layer = TransformerLayer
    exchanges = 2
    self_loops = False
    uses_edge_features = True
    work = ""
