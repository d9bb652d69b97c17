"""The models, one class each, after the classes that they share.

A class registers itself (``@register("name")``) and is named in :data:`hpcgnn.nn.config.KNOWN`, with its settings, so that a
command knows it without importing torch. Any other program may register a class that states its own ``summary`` and
``settings``: the command offers it from then on.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError, WrongValueError
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.aggregators import make_relation_aggregator
from hpcgnn.nn.attention import AttentionLayer, GATLayer, GATv2Layer, Heads, WeighingLayer, make_partial_plan
from hpcgnn.nn.config import (
    IGNORE,
    PIECES,
    AttentionSettings,
    BasesSettings,
    HopSettings,
    LayerSettings,
    ModelConfig,
    RGCNSettings,
    register,
)
from hpcgnn.nn.graph_model import Connection, GraphModel, ModelContext, Part
from hpcgnn.nn.halo import attention_edges, make_halo
from hpcgnn.nn.hetero import GATByType, Join, SumsByType, check_within_types
from hpcgnn.nn.layers import GCNIILayer, GCNLayer, GINLayer, LinearLayer, MeanNorm, RGCNLayer, SAGELayer, linear_first
from hpcgnn.nn.linear import Features, matmul, operand
from hpcgnn.nn.pieces import make_pieces
from hpcgnn.nn.relational import typed_edges
from hpcgnn.nn.typed_input import has_input_layer


class Stack(GraphModel):
    """[dropout, layer, norm, activation] repeated, without norm and activation after the last layer."""

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        widths = self.widths(context)
        self.layers, self.norms, self.dropouts = (torch.nn.ModuleList() for _ in range(3))
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
        return self.apply_layers(x, self.layers, self.norms, self.dropouts)


class LinearStack(Stack):
    """A stack of layers over a linear aggregator. layer: the class of the layers."""

    layer: ClassVar[type[LinearLayer]]
    begins_with_exchange = True

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        if config.edge_types == IGNORE:
            return super().connected(config, graph, strategy, **how)
        check_dense(config, graph)
        if cls.aggregation == "gcn":
            check_within_types(graph)
        aggregator, relations = make_relation_aggregator(graph, strategy, kind=cls.aggregation, **how)
        types = np.repeat(np.arange(len(relations.sizes)), relations.sizes)
        join = Join.of(graph, config.edge_types, relations.merge, types, how["dtype"])
        return Connection(aggregator, relations=relations, join=join)

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        is_input, keep = depth == 0, depth == 0 and context.keep_input_aggregation
        relations, join = context.connection.relations, context.connection.join
        if relations is not None and join is not None:
            has_root = self.aggregation != "gcn"
            own, widths = self.new_aggregator(keep=keep), (width, next_width)
            return SumsByType(widths, own, relations.sizes, join, has_root=has_root, compute=self.compute)
        needs_gradient = self.config.label_inputs or context.has_input_layer or not is_input
        first = linear_first(width, next_width, needs_gradient=needs_gradient, is_sparse=context.is_sparse and is_input)
        own = self.new_aggregator(keep=keep)
        return self.layer(width, next_width, own, transform_first=first and not keep, compute=self.compute)


def check_dense(config: ModelConfig, graph: LocalGraph) -> None:
    """Raise HpcgnnError, on every rank, for a graph whose features are stored sparse, unless an input layer makes them dense."""
    if isinstance(graph.features, Csr) and not has_input_layer(config, graph):
        raise HpcgnnError(
            f"{config.model} aggregates features before it multiplies them, and {graph.path} has sparse ones: convert the graph "
            "with --features dense, and partition it again",
            agreed=True,
        )


@register("rgcn")
class RGCN(Stack):
    """A stack of :class:`RGCNLayer`, which has full matrices where a width is no multiple of the number of blocks."""

    settings = (LayerSettings, BasesSettings, RGCNSettings)
    begins_with_exchange = True
    sums_by_type = True

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        check_dense(config, graph)
        aggregator, relations = make_relation_aggregator(graph, strategy, kind="sum", **how)
        return Connection(aggregator, relations=relations)

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        if config.bases and config.blocks:
            raise WrongValueError("bases and blocks are two forms of the same weights: give one of them")
        if config.blocks and config.hidden % config.blocks:
            raise WrongValueError(
                f"blocks must divide hidden: {config.hidden} columns have no {config.blocks} equal blocks"
            )

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        relations, config = context.connection.relations, self.config
        assert relations is not None
        own = self.new_aggregator(keep=depth == 0 and context.keep_input_aggregation)
        has_blocks = config.blocks and not width % config.blocks and not next_width % config.blocks
        blocks = config.blocks if has_blocks else 0
        return RGCNLayer(width, next_width, own, relations, bases=config.bases, blocks=blocks, compute=self.compute)


class Propagation(GraphModel):
    """A dense network of ``layers`` layers, [dropout, dense, activation] repeated, followed by exchanges for ``hops`` hops."""

    settings = (LayerSettings, HopSettings)  # also of a user's own models of this kind
    kept_rows = 1
    work = "propagation"

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        widths = self.widths(context)
        self.dense = torch.nn.ModuleList(self.new_dense(*pair) for pair in pairwise(widths))
        self.norms = torch.nn.ModuleList(map(self.new_norm, widths[1:-1], self.dense))
        self.dropouts = torch.nn.ModuleList(self.new_dropout(config.dropout) for _ in self.norms)
        self.hops = [self.new_aggregator() for _ in range(config.num_hops)]

    def before_softmax(self) -> list[Part]:
        return [self.dense[-1], self.hops[-1]]

    def transformed(self, x: Features) -> torch.Tensor:
        """(n, C) result of the dense network, which treats each node by itself."""
        return self.apply_layers(x, self.dense, self.norms, self.dropouts)


class AttentionStack(Stack):
    """A stack of layers with attention. All but the last one concatenate their heads; the last one averages them.

    layer: the class of the layers. exchanges: their number in a layer over the halo. self_loops: whether each node attends to
    itself exactly once, whatever edges the graph has.
    """

    layer: ClassVar[Callable[..., AttentionLayer]]
    exchanges: ClassVar[int] = 1
    self_loops: ClassVar[bool] = True
    settings: ClassVar[tuple[type, ...]] = (LayerSettings, AttentionSettings)
    kept_rows = 3
    work = "attention"

    @classmethod
    def connected(cls, config: ModelConfig, graph: LocalGraph, strategy: str, **how: Any) -> Connection:
        """Connect by a halo, whose rows travel unchanged whatever ``strategy`` is, or by a plan of partial attention."""
        if config.attention == "partial":
            plan = make_partial_plan(graph, strategy, messages=how["messages"], backend=how["backend"])
            return Connection(plan.rows, partial=plan)
        named = {name: value for name, value in how.items() if name != "dtype"}
        if config.edge_types != IGNORE:
            check_dense(config, graph)
            typed = typed_edges(graph, targets=True)
            assert typed.targets is not None
            join = Join.of(graph, config.edge_types, *typed.targets.merge, how["dtype"])
            return Connection(make_halo(graph, **named), typed=typed, join=join)
        attr_type = how["dtype"] if cls.uses_edge_features else None
        edges = attention_edges(graph, self_loops=cls.self_loops, attr_type=attr_type)
        if config.halo == PIECES:
            pieces = make_pieces(graph, edges, keyed=config.attention_dropout > 0, **named)
            return Connection(pieces.pieces[0].mover, pieces=pieces)
        return Connection(make_halo(graph, **named), edges=edges)

    @classmethod
    def uses_strategy(cls, config: ModelConfig) -> bool:
        return bool(config.attention == "partial")

    @classmethod
    def check_settings(cls, config: ModelConfig) -> None:
        config.section(AttentionSettings).check_width(config.hidden)
        if config.edge_types != IGNORE and config.attention == "partial":
            raise WrongValueError(
                "attention partial adds up edges of all types: take halo with edge_types, or ignore types"
            )
        if config.halo == PIECES and (config.edge_types != IGNORE or config.attention == "partial"):
            raise WrongValueError(
                "halo pieces needs attention halo, and edge_types ignore: take halo whole with others"
            )

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        is_last, rate, edges = depth == self.config.layers - 1, self.config.attention_dropout, context.connection.edges
        count = self.config.output_heads if is_last else self.config.heads
        heads = Heads(count, next_width if is_last else next_width // count, join=not is_last)
        typed, join = context.connection.typed, context.connection.join
        if typed is not None and join is not None:
            drops = self.new_edge_dropouts(rate, typed.ids if rate else None)
            halo = self.add_aggregator(self.aggregator)
            return GATByType(width, heads, halo, typed, join, drops, self.compute)
        wide_from = None if self.scores_joint_rows else heads.count * heads.width
        pieces = context.connection.pieces
        if pieces is not None:
            wide_from = wide_from if self.exchanges == 1 else None
            own = pieces.with_movers(lambda mover: self.add_aggregator(mover, wide_from))
            drops = self.new_edge_dropouts(rate, *(block.ids for block in pieces.blocks))
            return self.layer(width, heads, own, drops, self.compute)
        if edges is None:
            plan = context.connection.partial
            assert plan is not None
            scores, rows = (
                self.add_aggregator(plan.scores, 0),
                self.add_aggregator(plan.rows, heads.count * heads.width),
            )
            plan = replace(plan, scores=scores, rows=rows)
            return GATLayer(
                width, heads, plan, self.new_edge_dropouts(rate, plan.send_ids, plan.merge_ids), self.compute
            )
        halos = [self.add_aggregator(self.aggregator, wide_from) for _ in range(self.exchanges)]
        ids = edges.ids if rate else None  # 8 bytes an edge
        return self.layer(width, heads, (*halos, edges), self.new_edge_dropouts(rate, ids), self.compute)

    def before_softmax(self) -> list[Part]:
        """The last layer, and the aggregators that bring its rows."""
        layer = self.layers[-1]
        assert isinstance(layer, WeighingLayer)
        return [layer, *layer.parts]


@register("gcn")
class GCN(LinearStack):
    """A stack of :class:`GCNLayer`."""

    layer = GCNLayer
    kept_rows = 1
    work = "gcn"


@register("sage")
class SAGE(LinearStack):
    """A stack of :class:`SAGELayer`."""

    aggregation = "mean"
    layer = SAGELayer
    kept_rows = 1
    work = "sage"


@register("gin")
class GIN(LinearStack):
    """A stack of :class:`GINLayer`."""

    usual_norm = "batch"
    aggregation = "sum"
    layer = GINLayer
    kept_rows = 2
    work = "gin"

    def new_layer(self, context: ModelContext, depth: int, width: int, next_width: int) -> torch.nn.Module:
        return with_second(self, super().new_layer(context, depth, width, self.config.hidden), next_width)


def with_second(model: GraphModel, layer: torch.nn.Module, next_width: int) -> torch.nn.Module:
    """Add the second dense layer to a layer of GIN, and the norm before it."""
    layer.mean_norm = MeanNorm(model.config.hidden, model.messages.world, backend=model.backend)
    layer.out = model.new_dense(model.config.hidden, next_width)
    return layer


@register("jknet")
class JKNet(LinearStack):
    """A stack of GCN layers whose results are concatenated for a dense last layer (PyG's ``jk="cat"``)."""

    layer = GCNLayer
    kept_rows = 4
    work = "jknet"

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.norms.append(self.new_norm(config.hidden, self.layers[-1]))
        self.final_dropout = self.new_dropout(config.dropout)
        self.final = self.new_dense(config.layers * config.hidden, context.out_width)

    def widths(self, context: ModelContext) -> list[int]:
        """See :meth:`GraphModel.widths`: all layers are hidden layers here."""
        return [context.in_width, *[self.config.hidden] * self.config.layers]

    def before_softmax(self) -> list[Part]:
        return [self.final]

    def scores(self, x: Features) -> torch.Tensor:
        results: list[Any] = [x]
        for layer, norm, drop in zip(self.layers, self.norms, [torch.nn.Identity(), *self.dropouts], strict=True):
            given = results[-1], drop, layer, norm
            results.append(self.part(None, lambda y, *of: self.activated(of[1](of[0](y)), of[2]), *given))
        return self.final(self.final_dropout(torch.cat(results[1:], dim=1)))


@register("gcnii")
class GCNII(GraphModel):
    """A dense layer and activation; ``layers`` times [dropout, GCNII layer, norm, activation]; dropout and a dense layer."""

    has_dense_parameters = True
    kept_rows = 2
    work = "gcnii"
    ends_hidden = True

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        width = config.hidden
        self.first = self.new_dense(context.in_width, width)
        self.layers, self.norms, self.dropouts = (torch.nn.ModuleList() for _ in range(3))
        for depth in range(1, config.layers + 1):
            own = self.new_aggregator()
            assert isinstance(own, Aggregator)
            beta = math.log(config.identity / depth + 1)
            self.layers.append(GCNIILayer(width, own, config.teleport, beta, self.compute))
            self.norms.append(self.new_norm(width, self.layers[-1]))
            self.dropouts.append(self.new_dropout(config.dropout))
        self.last_dropout = self.new_dropout(config.dropout)
        self.last = self.new_dense(width, context.out_width)

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        return [*self.first.parameters(), *self.last.parameters()]

    def scores(self, x: Features) -> torch.Tensor:
        first = self.activated(self.first(x))
        y = first
        for layer, norm, drop in zip(self.layers, self.norms, self.dropouts, strict=True):
            given = y, first, drop, layer, norm
            y = self.part(None, lambda y, first, *of: self.activated(of[1](of[0](y), first), of[2]), *given)
        return self.last(self.last_dropout(y))


@register("sgc")
class SGC(GraphModel):
    """``Â^hops x W + b``; PyG's ``SGConv``.

    Propagation commutes with the weight, so rows as wide as the number of classes travel; with kept input aggregations, the
    features travel instead, but only once.
    """

    begins_with_exchange = True
    work = "sgc"

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.is_kept = context.keep_input_aggregation
        self.hops = [self.new_aggregator(keep=self.is_kept) for _ in range(config.num_hops)]
        self.dense = self.new_dense(context.in_width, context.out_width)

    def before_softmax(self) -> list[Part]:
        return [self.dense, self.hops[-1]]

    def scores(self, x: Features) -> torch.Tensor:
        if self.is_kept:
            assert isinstance(x, torch.Tensor | FeaturesOnDisk)
            return self.dense(self._propagated(x))
        transformed = matmul(operand(x, self.dense.compute), self.dense.weight, self.backend)
        return self._propagated(transformed) + self.dense.bias

    def _propagated(self, x: Any) -> torch.Tensor:
        return reduce(lambda y, hop: hop(y), self.hops, x)


@register("appnp")
class APPNP(Propagation):
    """Personalised PageRank of predictions: ``z <- (1 - teleport) Â z + teleport h``; PyG's ``APPNP``."""

    has_dense_parameters = True

    def dense_parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of the first layer, as in the paper."""
        return list(self.dense[0].parameters())

    def scores(self, x: Features) -> torch.Tensor:
        h = self.transformed(x)
        z = h
        for hop in self.hops:
            under_way = hop.begin(z)
            restart = self.config.teleport * h  # while rows travel
            z = torch.add(restart, under_way.finish(), alpha=1 - self.config.teleport)
        return z


@register("dagnn")
class DAGNN(Propagation):
    """``sum_k sigmoid(h_k s) h_k`` with ``h_k = Â^k h``: each node weights its hops by learned scores."""

    def __init__(self, config: ModelConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.gate = self.new_dense(context.out_width, 1)

    def before_softmax(self) -> list[Part]:
        return [*super().before_softmax(), self.gate]

    def scores(self, x: Features) -> torch.Tensor:
        h = self.transformed(x)
        total = self._weighed(h)
        for hop in self.hops:
            h = hop(h)
            total = total + self._weighed(h)
        return total

    def _weighed(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.gate(h)) * h


@register("gat")
class GAT(AttentionStack):
    """A stack of :class:`GATLayer`."""

    layer = GATLayer


@register("gatv2")
class GATv2(AttentionStack):
    """A stack of :class:`GATv2Layer`."""

    layer = GATv2Layer
    scores_joint_rows = True
    uses_edge_features = True
