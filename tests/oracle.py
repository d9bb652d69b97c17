"""All models by their formulas, in a few lines of plain torch each: float64, the whole graph, one process.

``scores(config, graph, parameters)`` takes parameters by their names in ``state_dict``. It calls nothing of hpcgnn but draws of
dropout, which are defined by keys. Shapes: N nodes, E edges, R types of edges, F columns, H heads of C columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import small_graphs
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.kernels import keyed
from hpcgnn.nn import ModelConfig


class Edges:
    """Some edges of a graph of N nodes. source, target: (E,) int64. attr: (E, D) or None."""

    def __init__(self, num_nodes: int, source: Tensor, target: Tensor, attr: Tensor | None = None) -> None:
        self.num_nodes, self.source, self.target, self.attr = num_nodes, source, target, attr

    def only(self, chosen: Tensor) -> Edges:
        """The edges where ``chosen`` (E,) is true."""
        attr = None if self.attr is None else self.attr[chosen]
        return Edges(self.num_nodes, self.source[chosen], self.target[chosen], attr)

    def sum(self, values: Tensor) -> Tensor:
        """(N, ...) sums over the edges that end at each node, of values (E, ...) of edges."""
        return values.new_zeros(self.num_nodes, *values.shape[1:]).index_add(0, self.target, values)

    def mean(self, values: Tensor) -> Tensor:
        """The means; 0 where no edge ends."""
        count = torch.bincount(self.target, minlength=self.num_nodes).clamp(min=1)
        return self.sum(values) / count.view(-1, *[1] * (values.dim() - 1))

    def softmax(self, scores: Tensor) -> Tensor:
        """(E, H) softmax over the edges that end at the same node."""
        powers = torch.exp(scores - scores.max() if scores.numel() else scores)
        return powers / self.sum(powers)[self.target]

    def with_loops(self) -> Edges:
        """With one loop at each node instead of those there are; its features are the mean of those that come from others."""
        others, nodes = self.only(self.source != self.target), torch.arange(self.num_nodes)
        attr = None if others.attr is None else torch.cat((others.attr, others.mean(others.attr)))
        return Edges(self.num_nodes, torch.cat((others.source, nodes)), torch.cat((others.target, nodes)), attr)


@dataclass
class Whole:
    """A whole graph, and what formulas use of it."""

    graph: small_graphs.Arrays

    @cached_property
    def edges(self) -> Edges:
        attr = None if self.graph.edge_attr is None else torch.from_numpy(self.graph.edge_attr).double()
        return Edges(self.graph.num_nodes, *torch.from_numpy(self.graph.edge_index).long(), attr)

    @cached_property
    def of_type(self) -> list[Tensor]:
        """For each type of edges, which edges have it."""
        assert self.graph.edge_type is not None
        types = torch.from_numpy(self.graph.edge_type)
        return [types == number for number in range(self.graph.meta().num_edge_types)]

    @cached_property
    def node_type(self) -> Tensor:
        """(N,) type of each node; 0 without types."""
        counts = [each.count for each in self.graph.node_types] or [self.graph.num_nodes]
        return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """The types of nodes at which edges of each type begin and end."""
        return [(each.source, each.destination) for each in self.graph.edge_types] or [(0, 0)] * len(self.of_type)

    def normalised(self, chosen: Tensor | None = None, at: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """``x -> Â x`` with ``Â = D^-1/2 (A + I) D^-1/2``: of the chosen edges, and of loops at the nodes ``at`` (N,), or at all.
        Loops that there are, of which the last counts, take the place of those of weight 1."""
        edges, size = self.edges, self.graph.num_nodes
        chosen = torch.ones(edges.source.numel(), dtype=torch.bool) if chosen is None else chosen
        weight = torch.ones(edges.source.numel(), dtype=torch.float64)
        if self.graph.weight is not None:
            weight = torch.from_numpy(self.graph.weight).double()
        matrix = torch.zeros(size, size, dtype=torch.float64)
        others = chosen & (edges.source != edges.target)
        matrix.index_put_((edges.target[others], edges.source[others]), weight[others], accumulate=True)
        loops = torch.ones(size, dtype=torch.float64) if at is None else at.double()
        for edge in torch.nonzero(chosen & (edges.source == edges.target))[:, 0].tolist():
            loops[edges.source[edge]] = weight[edge]
        matrix += torch.diag(loops)
        root = matrix.sum(1).clamp(min=1e-300).rsqrt()
        return lambda x: (root[:, None] * matrix * root) @ x


@dataclass
class Model:
    """A model's settings and parameters, and the part of a module's name that comes before those of its parameters."""

    config: ModelConfig
    whole: Whole
    parameters: dict[str, Tensor]
    drop: Callable[..., Tensor]
    name: str = ""

    def __getitem__(self, key: str) -> Tensor:
        return self.parameters[self.name + key]

    def has(self, key: str) -> bool:
        return self.name + key in self.parameters

    def part(self, name: str) -> Model:
        return Model(self.config, self.whole, self.parameters, self.drop, f"{self.name}{name}.")

    @property
    def depth(self) -> int:
        """The number of the layer ``layers.depth.``."""
        return int(self.name.split(".")[1])

    def drop_weights(self, alpha: Tensor, edges: Edges, types: Tensor | int | None = None) -> Tensor:
        """Dropout of the weights (E, H) of edges, whose draws belong to their ends, and to types that are told apart."""
        ids = (edges.target << 32) ^ edges.source
        ids = ids if types is None else ids ^ (torch.as_tensor(types) * (keyed.GOLDEN_64 - (1 << 64)))
        return self.drop(alpha, 2 * self.depth + 1 if self.config.model == "hgt" else 2 * self.depth or 1, ids)

    def dense(self, x: Tensor) -> Tensor:
        return x @ self["weight"] + self["bias"]

    def norm(self, x: Tensor) -> Tensor:
        name = self.config.norm_in_use
        if name == "mean":
            return x - x.mean(0) + self["bias"]
        if name == "batch":
            return F.batch_norm(x, None, None, self["weight"], self["bias"], training=True)
        return F.layer_norm(x, x.shape[1:], self["weight"], self["bias"]) if name == "layer" else x

    def activated(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Norm and activation, for a depth with a norm."""
        x = x if depth is None else self.part(f"norms.{depth}").norm(x)
        return F.elu(x) if self.config.activation == "elu" else F.relu(x)


# -- layers --------------------------------------------------------------------------------------------------------------


def gcn(layer: Model, x: Tensor) -> Tensor:
    return layer.whole.normalised()(x) @ layer["weight"] + layer["bias"]


def sage(layer: Model, x: Tensor) -> Tensor:
    edges = layer.whole.edges
    return edges.mean(x[edges.source]) @ layer["weight_neighbour"] + x @ layer["weight_root"] + layer["bias"]


def gin(layer: Model, x: Tensor) -> Tensor:
    edges = layer.whole.edges
    messages = x[edges.source]
    if layer.has("weight_edge"):
        assert edges.attr is not None
        messages = F.relu(messages + edges.attr @ layer["weight_edge"] + layer["bias_edge"])
    inner = layer.dense((1 + layer["eps"]) * x + edges.sum(messages))
    rows = F.layer_norm(inner, inner.shape[1:], layer["norm.weight"])
    return layer.part("out").dense(F.relu(rows - rows.mean(0) + layer["mean_norm.bias"]))


def by_head(x: Tensor, vectors: Tensor) -> Tensor:
    """(n, H) products of each head of x (n, H*C) with its vector of (H, C)."""
    return (x.view(-1, *vectors.shape) * vectors).sum(2)


def weighed(edges: Edges, alpha: Tensor, values: Tensor) -> Tensor:
    """(N, H*C) sums over edges, of values (E, H*C) with weights alpha (E, H)."""
    by_head = values.view(*alpha.shape, values.shape[1] // alpha.shape[1])  # there may be no edges
    return edges.sum((alpha[:, :, None] * by_head).flatten(1))


def joined(layer: Model, heads: int, y: Tensor, bias: Tensor) -> Tensor:
    """The heads side by side, or in the last layer their mean, and the bias."""
    return (y if bias.shape[-1] == y.shape[1] else y.view(-1, heads, bias.shape[-1]).mean(1)) + bias


def gat(layer: Model, x: Tensor) -> Tensor:
    edges, rows = layer.whole.edges.with_loops(), x @ layer["weight"]
    target, source = by_head(rows, layer["attend_target"]), by_head(rows, layer["attend_source"])
    alpha = edges.softmax(F.leaky_relu(target[edges.target] + source[edges.source], 0.2))
    alpha = layer.drop_weights(alpha, edges)
    return joined(layer, target.shape[1], weighed(edges, alpha, rows[edges.source]), layer["bias"])


def gatv2(layer: Model, x: Tensor) -> Tensor:
    edges = layer.whole.edges.with_loops()
    source = x @ layer["weight_source"] + layer["bias_source"]
    target = x @ layer["weight_target"] + layer["bias_target"]
    both = target[edges.target] + source[edges.source]
    both = both + edges.attr @ layer["weight_edge"] if layer.has("weight_edge") else both
    alpha = layer.drop_weights(edges.softmax(by_head(F.leaky_relu(both, 0.2), layer["attend"])), edges)
    return joined(layer, alpha.shape[1], weighed(edges, alpha, source[edges.source]), layer["bias"])


def transformer(layer: Model, x: Tensor) -> Tensor:
    edges, config = layer.whole.edges, layer.config
    heads = config.output_heads if layer.depth == config.layers - 1 else config.heads
    query = (x @ layer["weight_query"] + layer["bias_query"])[edges.target]
    value = (x @ layer["weight_value"] + layer["bias_value"])[edges.source]
    key = (x @ layer["weight_key"])[edges.source]
    if layer.has("weight_edge"):
        of_edge = edges.attr @ layer["weight_edge"]
        key, value = key + of_edge, value + of_edge
    width = query.shape[1] // heads
    alpha = layer.drop_weights(edges.softmax((query * key).view(-1, heads, width).sum(2) / math.sqrt(width)), edges)
    return joined(layer, heads, weighed(edges, alpha, value), layer["bias"]) + x @ layer["weight_root"]


def of_types(layer: Model) -> Tensor:
    """(R, F, F') weights of the types of edges."""
    weight = layer["weight"]
    if weight.dim() == 4:  # blocks of a diagonal
        weight = torch.stack([torch.block_diag(*blocks) for blocks in weight])
    return torch.tensordot(layer["mix"], weight, 1) if layer.has("mix") else weight


def rgcn(layer: Model, x: Tensor) -> Tensor:
    y = x @ layer["weight_root"] + layer["bias"]
    for chosen, weight in zip(layer.whole.of_type, of_types(layer), strict=True):
        edges = layer.whole.edges.only(chosen)
        y = y + edges.mean(x[edges.source]) @ weight
    return y


def rgat(layer: Model, x: Tensor) -> Tensor:
    edges, size = layer.whole.edges, layer.whole.graph.num_nodes
    types = torch.stack(layer.whole.of_type).int().argmax(0)
    rows = torch.stack([x @ weight for weight in of_types(layer)])  # (R, N, H*C)
    source, target = rows[types, edges.source], rows[types, edges.target]
    scores = target @ layer["attend_target"] + source @ layer["attend_source"]
    if layer.has("weight_edge"):
        scores = scores + edges.attr @ layer["weight_edge"] @ layer["attend_edge"]
    group = edges
    if layer.config.attention_mechanism == "within-relation":
        group = Edges(size * len(rows), edges.source, edges.target * len(rows) + types)
    alpha = layer.drop_weights(group.softmax(F.leaky_relu(scores, 0.2)), edges, types)
    return joined(layer, alpha.shape[1], weighed(edges, alpha, source), layer["bias"])


def hgt(layer: Model, x: Tensor) -> Tensor:
    whole, kinds, edges = layer.whole, layer.whole.node_type, layer.whole.edges
    types, heads = torch.stack(whole.of_type).int().argmax(0), layer.config.heads
    width = x.shape[1] // heads

    def of_nodes(what: str, x: Tensor) -> Tensor:
        weight, bias = layer[f"weight_{what}"][kinds], layer[f"bias_{what}"][kinds]
        return (x[:, None] @ weight)[:, 0] + bias

    def of_edges(what: str, x: Tensor) -> Tensor:  # (E, H, C)
        rows = of_nodes(what, x)[edges.source].view(-1, heads, 1, width)
        return (rows @ layer[f"relation_{what}"][types])[:, :, 0]

    query = of_nodes("query", x)[edges.target].view(-1, heads, width)
    scores = (query * of_edges("key", x)).sum(2) * layer["prior"][types] / math.sqrt(width)
    z = weighed(edges, layer.drop_weights(edges.softmax(scores), edges, types), of_edges("value", x).flatten(1))
    return torch.lerp(x, of_nodes("out", F.gelu(z)), torch.sigmoid(layer["skip"])[kinds][:, None])


def of_type(layer: Model, number: int, x: Tensor) -> Tensor:
    """(N, F') results of a type of edges by itself, as if it ended at all nodes."""
    whole, bias = layer.whole, layer["bias"][number]
    edges, weight = whole.edges.only(whole.of_type[number]), layer["weight"][number]
    if layer.config.model == "gcn":
        at = whole.node_type == whole.ends[number][1]
        return whole.normalised(whole.of_type[number], at)(x) @ weight + bias
    if layer.config.model == "sage":
        return edges.mean(x[edges.source]) @ weight + x @ layer["weight_root"][number] + bias
    rows = x @ weight
    target, source = (by_head(rows, layer[f"attend_{end}"][number]) for end in ("target", "source"))
    alpha = edges.softmax(F.leaky_relu(target[edges.target] + source[edges.source], 0.2))
    alpha = layer.drop_weights(alpha, edges, number)
    return joined(layer, target.shape[1], weighed(edges, alpha, rows[edges.source]), bias)


def by_type(layer: Model, x: Tensor) -> Tensor:
    """PyG's HeteroConv: the sum, mean or maximum over the types of edges that end at nodes of a node's type."""
    whole, how, rows = layer.whole, layer.config.edge_types, []
    results = torch.stack([of_type(layer, number, x) for number in range(len(whole.ends))])
    for node, kind in enumerate(whole.node_type.tolist()):
        found = results[[number for number, (_, end) in enumerate(whole.ends) if end == kind], node]
        if not len(found):
            rows.append(torch.zeros_like(results[0, node]))
        else:
            rows.append(found.sum(0) if how == "sum" else found.mean(0) if how == "mean" else found.max(0).values)
    return torch.stack(rows)


LAYERS = {
    "gcn": gcn, "sage": sage, "gin": gin, "gine": gin, "gat": gat, "gatv2": gatv2, "transformer": transformer, "rgcn": rgcn,
    "rgat": rgat,
}  # fmt: skip

# -- models --------------------------------------------------------------------------------------------------------------


def stack(model: Model, x: Tensor, layer: Callable[[Model, Tensor], Tensor], name: str = "layers") -> Tensor:
    """Layers with norm, activation and dropout between two."""
    last = model.config.layers - 1
    has_attention = model.config.model in ("gat", "gatv2", "transformer", "rgat")
    for depth in range(last + 1):
        if depth:
            number = 2 * depth + 1 if has_attention else depth  # each layer with attention has a dropout of its own
            x = model.drop(model.activated(x, depth - 1), number)
        x = layer(model.part(f"{name}.{depth}"), x)
    return x


def jknet(model: Model, x: Tensor) -> Tensor:
    results = [model.activated(gcn(model.part("layers.0"), x), 0)]
    for depth in range(1, model.config.layers):
        results.append(model.activated(gcn(model.part(f"layers.{depth}"), model.drop(results[-1], depth)), depth))
    return model.part("final").dense(model.drop(torch.cat(results, 1), model.config.layers))


def gcnii(model: Model, x: Tensor) -> Tensor:
    config, propagate = model.config, model.whole.normalised()
    first = y = model.activated(model.part("first").dense(x))
    for depth in range(1, config.layers + 1):
        beta = math.log(config.identity / depth + 1)
        y = (1 - config.teleport) * propagate(model.drop(y, depth)) + config.teleport * first
        y = model.activated((1 - beta) * y + beta * y @ model[f"layers.{depth - 1}.weight"], depth - 1)
    return model.part("last").dense(model.drop(y, config.layers + 1))


def sgc(model: Model, x: Tensor) -> Tensor:
    for _ in range(model.config.num_hops):
        x = model.whole.normalised()(x)
    return model.part("dense").dense(x)


def appnp(model: Model, x: Tensor) -> Tensor:
    z = h = stack(model, x, Model.dense, "dense")
    for _ in range(model.config.num_hops):
        z = (1 - model.config.teleport) * model.whole.normalised()(z) + model.config.teleport * h
    return z


def dagnn(model: Model, x: Tensor) -> Tensor:
    h, gate, total = stack(model, x, Model.dense, "dense"), model.part("gate"), 0
    for hop in range(model.config.num_hops + 1):
        h = model.whole.normalised()(h) if hop else h
        total = total + torch.sigmoid(gate.dense(h)) * h
    return total


def heterogeneous(model: Model, x: Tensor) -> Tensor:
    x = model.activated(model.part("first").dense(x) if model.has("first.weight") else x)
    for depth in range(model.config.layers):
        x = hgt(model.part(f"layers.{depth}"), model.drop(x, 2 * depth + 2))
        x = model.activated(x, depth)
    return model.part("last").dense(model.drop(x, 2 * model.config.layers + 1))


MODELS = {"jknet": jknet, "gcnii": gcnii, "sgc": sgc, "appnp": appnp, "dagnn": dagnn, "hgt": heterogeneous}


def masks(config: ModelConfig, num_nodes: int, seed: int, epoch: int) -> Callable[..., Tensor]:
    """Dropout by keys: ``drop(x, number)``, where the dropout of number 0 is that of the input, and ``drop(alpha, number, ids)``
    of the weights of edges."""

    def drop(x: Tensor, number: int, ids: Tensor | None = None) -> Tensor:
        rate = config.attention_dropout if ids is not None else config.dropout if number else config.input_dropout
        if not rate:
            return x
        key = keyed.derive_key(seed, epoch, number)
        hashes = keyed.row_hashes(key, np.arange(num_nodes) if ids is None else ids.numpy())
        draws = keyed.draws(hashes[:, None], np.arange(x.shape[1]))
        return x * torch.from_numpy(draws >= np.uint32(keyed.threshold(rate))) / (1 - rate)

    return drop


def embedded_nodes(config: ModelConfig, graph: small_graphs.Arrays) -> np.ndarray:
    """The int64 numbers of the nodes that have a learned row."""
    names = [name for each in graph.node_types for name in [each.name] * each.count] or [""] * graph.num_nodes
    chosen = config.embed.split(",") if config.embed not in ("", "all") else []
    return np.flatnonzero([config.embed == "all" or name in chosen for name in names])


def scores(
    config: ModelConfig, graph: small_graphs.Arrays, parameters: dict[str, Tensor], x: Tensor, seed: int, epoch: int
) -> Tensor:
    """(N, classes) scores of features x (N, F) in a training pass."""
    model = Model(config, Whole(graph), parameters, masks(config, graph.num_nodes, seed, epoch))
    x = model.drop(x, 0)
    if model.has("input_layer.bias"):
        h = model["input_layer.bias"][model.whole.node_type] + x @ model["input_layer.weight"]
        embedded = torch.from_numpy(embedded_nodes(config, graph))
        x = h.index_add(0, embedded, model["input_layer.embedding"]) if embedded.numel() else h
    if config.model in MODELS:
        return MODELS[config.model](model, x)
    return stack(model, x, LAYERS[config.model] if config.edge_types == "ignore" else by_type)
