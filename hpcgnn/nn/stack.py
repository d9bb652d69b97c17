"""Models that are a stack of layers: GCN, GraphSAGE, GIN, GAT, GATv2 and jumping knowledge."""

from __future__ import annotations

from itertools import pairwise

import torch

from hpcgnn.nn.aggregate import Aggregator
from hpcgnn.nn.attention import GATLayer, GATv2Layer, Heads, Neighbours, PartialGATLayer
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.graph_model import Frame, GraphModel
from hpcgnn.nn.layers import Dense, GCNLayer, GINLayer, SAGELayer, linear_first
from hpcgnn.nn.linear import Features

LINEAR_LAYERS: dict[str, type[GCNLayer | SAGELayer | GINLayer]] = {
    "gcn": GCNLayer,
    "sage": SAGELayer,
    "gin": GINLayer,
    "jknet": GCNLayer,
}
ATTENTION_LAYERS = {"gat": GATLayer, "gatv2": GATv2Layer}


class GNN(GraphModel):
    """[dropout, layer, norm, activation] repeated, without norm and activation after the last layer."""

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        widths = self.widths(frame)
        self.layers = torch.nn.ModuleList()
        self.norms = torch.nn.ModuleList()
        self.dropouts = torch.nn.ModuleList()
        for depth, (width, next_width) in enumerate(pairwise(widths)):
            self.layers.append(self.new_layer(frame, depth, width, next_width))
            if depth:
                self.dropouts.append(self.new_dropout(config.dropout))
            if depth < len(widths) - 2:
                self.norms.append(self.new_norm(next_width))

    def new_layer(self, frame: Frame, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """The layer of this depth."""
        is_input, keep = depth == 0, depth == 0 and frame.keep_input_aggregation
        needs_gradient = self.config.label_inputs or not is_input
        first = linear_first(width, next_width, needs_gradient=needs_gradient, is_sparse=frame.is_sparse and is_input)
        layer = LINEAR_LAYERS[self.config.model]
        own = self.new_aggregator(keep=keep)
        return layer(width, next_width, own, transform_first=first and not keep, compute=self.compute)

    def scores(self, x: Features) -> torch.Tensor:
        """As :meth:`GraphModel.scores`."""
        return self.through(x, self.layers, self.norms, self.dropouts)


class AttentionGNN(GNN):
    """The same stack of layers with attention; all but the last one join their heads, which averages its own."""

    def new_layer(self, frame: Frame, depth: int, width: int, next_width: int) -> torch.nn.Module:
        """The layer of this depth."""
        config, is_last = self.config, depth == self.config.layers - 1
        count = config.output_heads if is_last else config.heads
        heads = Heads(count, next_width if is_last else next_width // count, join=not is_last)
        if frame.partial is not None:
            plan = self.new_partial_plan(frame.partial)
            send_drop, drop = self.new_edge_dropouts(config.attention_dropout, plan.send_ids, plan.merge_ids)
            return PartialGATLayer(width, heads, plan, (send_drop, drop), self.compute)
        halo = self.new_aggregator()
        assert frame.edges is not None
        assert isinstance(halo, Aggregator)
        ids = frame.edges.ids if config.attention_dropout else None  # 8 bytes an edge
        (drop,) = self.new_edge_dropouts(config.attention_dropout, ids)
        return ATTENTION_LAYERS[config.model](width, heads, Neighbours(halo, frame.edges, drop), self.compute)


class JKNet(GNN):
    """A stack whose layers' results are joined for a dense last layer (jumping knowledge; PyG's ``jk="cat"``)."""

    def __init__(self, config: ModelConfig, frame: Frame) -> None:
        super().__init__(config, frame)
        self.norms.append(self.new_norm(config.hidden))
        self.final_dropout = self.new_dropout(config.dropout)
        self.final = Dense(config.layers * config.hidden, frame.out_width, compute=self.compute)

    def widths(self, frame: Frame) -> list[int]:
        """All layers are hidden ones."""
        return [frame.in_width, *[self.config.hidden] * self.config.layers]

    def scores(self, x: Features) -> torch.Tensor:
        """As :meth:`GraphModel.scores`."""
        results = [self.activated(self.layers[0](x), self.norms[0])]
        for layer, norm, drop in zip(self.layers[1:], self.norms[1:], self.dropouts, strict=True):
            results.append(self.activated(layer(drop(results[-1])), norm))
        return self.final(self.final_dropout(torch.cat(results, dim=1)))
