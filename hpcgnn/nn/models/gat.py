"""GAT (Veličković et al.)."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.attention import GATLayer, PartialGATLayer
from hpcgnn.nn.attention_stack import AttentionStack
from hpcgnn.nn.config import ModelConfig, register
from hpcgnn.nn.graph_model import Connection, ModelContext
from hpcgnn.nn.partial_attention import make_partial_plan


@register("gat")
class GAT(AttentionStack):
    """A stack of :class:`GATLayer`, or of :class:`PartialGATLayer` with partial attention."""

    layer = GATLayer

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """See :meth:`GraphModel.connected`."""
        if config.attention != "partial":
            return super().connected(config, graph, strategy, **how)
        plan = make_partial_plan(graph, strategy, messages=how["messages"], backend=how["backend"])
        return Connection(plan.rows, partial=plan)

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        """See :meth:`GraphModel.uses_strategy`."""
        return config.attention == "partial"

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """Make the layer at this depth."""
        if context.connection.partial is None:
            return super().new_layer(context, depth, width, next_width)
        plan = self.new_partial_plan(context.connection.partial)
        send_drop, drop = self.new_edge_dropouts(self.config.attention_dropout, plan.send_ids, plan.merge_ids)
        return PartialGATLayer(width, self.heads(depth, next_width), plan, (send_drop, drop), self.compute)
