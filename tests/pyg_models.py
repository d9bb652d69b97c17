"""The native models built from PyG's layers, as references, without dropout. :func:`load` sets their weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import small_graphs
import torch
import torch.nn.functional as F
from torch.nn import LayerNorm, Linear, ModuleList, ReLU, Sequential
from torch_geometric.nn import (
    APPNP,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    HeteroConv,
    HGTConv,
    LGConv,
    MeanSubtractionNorm,
    RGATConv,
    RGCNConv,
    SAGEConv,
    SGConv,
    TransformerConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hpcgnn.nn import ModelConfig

Tensors = dict[str, torch.Tensor]
RELATIONS = 4  # of graphs that are not given
ATTENTION = {"gat": GATConv, "gatv2": GATv2Conv, "transformer": TransformerConv}
WITH_EDGE_FEATURES = ("gatv2", "gine", "transformer")


class Centred(MeanSubtractionNorm):
    """With a bias, and with a running mean in evaluations, as :class:`torch.nn.BatchNorm1d` has one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(width))
        self.running_mean: torch.Tensor
        self.register_buffer("running_mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * x.detach().mean(0)
            return super().forward(x) + self.bias
        return x - self.running_mean + self.bias


NORMS = {
    "mean": Centred,
    "batch": torch.nn.BatchNorm1d,
    "layer": torch.nn.LayerNorm,
    "none": lambda width: torch.nn.Identity(),
}


class Reference(torch.nn.Module):
    """``model(x, edge_index, weight)`` for a whole graph. graph: its types and features of edges, for models that need them."""

    edge_type: torch.Tensor
    edge_attr: torch.Tensor | None = None

    def __init__(
        self, config: ModelConfig, in_width: int, out_width: int, graph: small_graphs.Arrays | None = None
    ) -> None:
        super().__init__()
        self.config, self.graph = config, graph
        self.edge_dim = None if graph is None or graph.edge_attr is None else graph.edge_attr.shape[1]
        self.relations = RELATIONS if graph is None else graph.meta().num_edge_types
        if graph is not None and graph.edge_type is not None:
            self.edge_type = torch.from_numpy(graph.edge_type).long()
        if graph is not None and graph.edge_attr is not None:
            self.edge_attr = torch.from_numpy(graph.edge_attr).double()
        depth = config.layers + (config.model == "jknet")
        self.widths = [in_width, *[config.hidden] * (depth - 1), out_width]
        hidden = self.widths[1:-1]
        count = {"gcnii": config.layers, "hgt": config.layers}.get(config.model, len(hidden))
        self.norms = ModuleList(NORMS[config.norm_in_use](config.hidden) for _ in range(count))
        self.make_layers(config, in_width, out_width)

    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        raise NotImplementedError

    def activated(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return (F.elu if self.config.activation == "elu" else F.relu)(self.norms[depth](x))


class Stack(Reference):
    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        last = len(self.widths) - 2
        self.layers = ModuleList(self._layer(i == last, *pair) for i, pair in enumerate(pairwise(self.widths)))

    def _layer(self, is_last: bool, width: int, next_width: int) -> torch.nn.Module:
        kind, config = self.config.model, self.config
        if kind in ("gin", "gine"):
            hidden = config.hidden
            norms = LayerNorm(hidden, bias=False), Centred(hidden)
            inner = Sequential(Linear(width, hidden), *norms, ReLU(), Linear(hidden, next_width))
            how = {"edge_dim": self.edge_dim} if kind == "gine" else {}
            return {"gin": GINConv, "gine": GINEConv}[kind](inner, train_eps=True, **how)
        if kind in ATTENTION:
            heads, of_edges = config.output_heads if is_last else config.heads, {}
            if kind in WITH_EDGE_FEATURES:
                of_edges = {"edge_dim": self.edge_dim}
            columns = next_width if is_last else next_width // heads
            layer = ATTENTION[kind](width, columns, heads, concat=not is_last, **of_edges)
            if kind == "transformer":  # a softmax does not see the bias of keys
                layer.lin_key = Linear(width, heads * columns, bias=False)
            return layer
        if kind == "rgat":
            heads = config.output_heads if is_last else config.heads
            return RGATConv(
                width, next_width if is_last else next_width // heads, self.relations, config.bases or None,
                heads=heads, concat=not is_last, edge_dim=self.edge_dim, attention_mechanism=config.attention_mechanism,
            )  # fmt: skip
        if kind == "rgcn":
            has_blocks = config.blocks and not width % config.blocks and not next_width % config.blocks
            return RGCNConv(
                width, next_width, self.relations, config.bases or None, config.blocks if has_blocks else None
            )
        return {"gcn": GCNConv, "sage": SAGEConv}[kind](width, next_width)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        for depth, layer in enumerate(self.layers):
            types = getattr(self, "edge_type", None)
            others = {GCNConv: [weight], RGCNConv: [types], RGATConv: [types, self.edge_attr]}.get(type(layer), [])
            if self.config.model in WITH_EDGE_FEATURES:
                others = [self.edge_attr]
            x = layer(x, edge_index, *others)
            if depth < len(self.norms):
                x = self.activated(x, depth)
        return x


class Jumping(Reference):
    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        self.layers = ModuleList(GCNConv(*pair) for pair in pairwise(self.widths[:-1]))
        self.final = Linear(config.layers * config.hidden, out_width)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        results = []
        for depth, layer in enumerate(self.layers):
            x = self.activated(layer(x, edge_index, weight), depth)
            results.append(x)
        return self.final(torch.cat(results, 1))


class Deep(Reference):
    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        self.first, self.last = Linear(in_width, config.hidden), Linear(config.hidden, out_width)
        self.layers = ModuleList(
            GCN2Conv(config.hidden, config.teleport, config.identity, depth + 1) for depth in range(config.layers)
        )

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        first = x = F.elu(self.first(x)) if self.config.activation == "elu" else self.first(x).relu()
        for depth, layer in enumerate(self.layers):
            x = self.activated(layer(x, first, edge_index, weight), depth)
        return self.last(x)


class Simple(Reference):
    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        self.layer, self.norms = SGConv(in_width, out_width, config.num_hops), ModuleList()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return self.layer(x, edge_index, weight)


class Propagated(Reference):
    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        self.dense = ModuleList(Linear(*pair) for pair in pairwise(self.widths))
        self.hops = APPNP(config.num_hops, config.teleport)
        if config.model == "dagnn":
            self.hop, self.gate = LGConv(normalize=False), Linear(out_width, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        for depth, dense in enumerate(self.dense):
            x = dense(x)
            if depth < len(self.norms):
                x = self.activated(x, depth)
        if self.config.model == "appnp":
            return self.hops(x, edge_index, weight)
        edges, weight = gcn_norm(edge_index, weight, x.shape[0], dtype=x.dtype)
        total = torch.sigmoid(self.gate(x)) * x
        for _ in range(self.config.num_hops):
            x = self.hop(x, edges, weight)
            total = total + torch.sigmoid(self.gate(x)) * x
        return total


class ByType(Reference):
    """Models on dictionaries by type. A graph without types of nodes has one type; of one with types, x are the rows that the
    input layer makes."""

    def name_types(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The names of types of nodes and of edges."""
        assert self.graph is not None
        meta = self.graph.meta()
        self.counts = [each.count for each in meta.node_types] or [meta.num_nodes]
        of_edges = [(each.source, each.destination) for each in meta.edge_types] or [(0, 0)] * meta.num_edge_types
        self.keys = [(str(source), str(number), str(target)) for number, (source, target) in enumerate(of_edges)]
        self.offsets = np.cumsum([0, *self.counts])
        return [str(kind) for kind in range(len(self.counts))], self.keys

    def by_type(self, x: torch.Tensor) -> Tensors:
        return {str(kind): part for kind, part in enumerate(x.split(self.counts))}

    def together(self, x: Tensors) -> torch.Tensor:
        return torch.cat([x[str(kind)] for kind in range(len(self.counts))])

    def edges_by_type(self, edge_index: torch.Tensor) -> dict[tuple[str, str, str], torch.Tensor]:
        edges = {}
        for number, (source, name, target) in enumerate(self.keys):
            begins = torch.from_numpy(self.offsets[[int(source), int(target)]])
            edges[source, name, target] = edge_index[:, self.edge_type == number] - begins[:, None]
        return edges


class Heterogeneous(ByType):
    """HGT."""

    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        metadata = self.name_types()
        has_types = self.graph is not None and self.graph.node_types
        self.first = torch.nn.Identity() if has_types else Linear(in_width, config.hidden)
        self.layers = ModuleList(
            HGTConv(config.hidden, config.hidden, metadata, config.heads) for _ in range(config.layers)
        )
        self.last = Linear(config.hidden, out_width)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        edges, x = self.edges_by_type(edge_index), self.first(x)
        x = F.elu(x) if self.config.activation == "elu" else x.relu()
        for depth, layer in enumerate(self.layers):
            x = self.activated(self.together(layer(self.by_type(x), edges)), depth)
        return self.last(x)


class Separate(ByType):
    """Models whose types of edges have weights of their own."""

    def make_layers(self, config: ModelConfig, in_width: int, out_width: int) -> None:
        self.name_types()
        last = len(self.widths) - 2
        self.layers = ModuleList(
            HeteroConv({key: self._layer(depth == last, *pair) for key in self.keys}, config.edge_types)
            for depth, pair in enumerate(pairwise(self.widths))
        )

    def _layer(self, is_last: bool, width: int, next_width: int) -> torch.nn.Module:
        config = self.config
        if config.model == "gat":
            heads = config.output_heads if is_last else config.heads
            columns = next_width if is_last else next_width // heads
            return GATConv(width, columns, heads, concat=not is_last, add_self_loops=False)
        return {"gcn": GCNConv, "sage": SAGEConv}[config.model](width, next_width)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        edges, how = self.edges_by_type(edge_index), {}
        if self.config.model == "gcn" and weight is not None:
            how["edge_weight_dict"] = {key: weight[self.edge_type == number] for number, key in enumerate(self.keys)}
        for depth, layer in enumerate(self.layers):
            x = self.together(layer(self.by_type(x), edges, **how))
            if depth < len(self.norms):
                x = self.activated(x, depth)
        return x


REFERENCES = {
    "hgt": Heterogeneous,
    "jknet": Jumping,
    "gcnii": Deep,
    "sgc": Simple,
    "appnp": Propagated,
    "dagnn": Propagated,
}
# For the end of our parameter's name: PyG's name, whether it is transposed, and its shape in PyG.
_LEAVES = {
    "gin": {"weight": ("nn.0.weight", True), "bias": ("nn.0.bias", False), "norm.weight": ("nn.1.weight", False),
            "mean_norm.bias": ("nn.2.bias", False), "mean_norm.running_mean": ("nn.2.running_mean", False),
            "out.weight": ("nn.4.weight", True), "out.bias": ("nn.4.bias", False), "eps": ("eps", False)},
    "gat": {"weight": ("lin.weight", True), "attend_source": ("att_src", False), "attend_target": ("att_dst", False),
            "bias": ("bias", False)},
    "gatv2": {"weight_source": ("lin_l.weight", True), "bias_source": ("lin_l.bias", False), "bias": ("bias", False),
              "weight_target": ("lin_r.weight", True), "bias_target": ("lin_r.bias", False), "attend": ("att", False),
              "weight_edge": ("lin_edge.weight", True)},
    "transformer": {"weight_query": ("lin_query.weight", True), "bias_query": ("lin_query.bias", False),
                    "weight_key": ("lin_key.weight", True), "weight_value": ("lin_value.weight", True),
                    "bias_value": ("lin_value.bias", False), "weight_edge": ("lin_edge.weight", True),
                    "weight_root": ("lin_skip.weight", True), "bias": ("lin_skip.bias", False)},
    "sage": {"weight_neighbour": ("lin_l.weight", True), "weight_root": ("lin_r.weight", True), "bias": ("lin_l.bias", False)},
    "gcnii": {"weight": ("weight1", False)},
    "rgcn": {"weight": ("weight", False), "mix": ("comp", False), "weight_root": ("root", False), "bias": ("bias", False)},
    "gcn": {"weight": ("lin.weight", True), "bias": ("bias", False)},
}  # fmt: skip
_LEAVES["gine"] = _LEAVES["gin"] | {"weight_edge": ("lin.weight", True), "bias_edge": ("lin.bias", False)}
_LEAVES["jknet"] = _LEAVES["gcn"]
_LEAVES["rgat"] = {
    "weight": ("weight", False), "mix": ("att", False), "attend_target": ("q", False), "attend_source": ("k", False),
    "weight_edge": ("lin_edge.weight", True), "attend_edge": ("e", False), "bias": ("bias", False),
}  # fmt: skip


def _hgt_layer(values: Tensors, keys: list[tuple[str, str, str]]) -> Tensors:
    """The parameters of a layer of HGT, or their gradients, with PyG's names, orientation and shapes."""
    kqv = ("key", "query", "value")
    weight, bias = (torch.cat([values[f"{what}_{each}"] for each in kqv], dim=-1) for what in ("weight", "bias"))
    found = {
        f"{short}_rel.weight": values[f"relation_{name}"].transpose(0, 1).flatten(0, 1)
        for short, name in (("k", "key"), ("v", "value"))
    }
    for number, key in enumerate(keys):
        found[f"p_rel.{'__'.join(key)}"] = values["prior"][number][None]
    for kind in range(weight.shape[0]):
        found |= {
            f"kqv_lin.lins.{kind}.weight": weight[kind].T, f"kqv_lin.lins.{kind}.bias": bias[kind],
            f"out_lin.lins.{kind}.weight": values["weight_out"][kind].T, f"out_lin.lins.{kind}.bias": values["bias_out"][kind],
            f"skip.{kind}": values["skip"][kind : kind + 1],
        }  # fmt: skip
    return found


def _of_types(config: ModelConfig, values: Tensors, keys: list[tuple[str, str, str]]) -> Tensors:
    """The parameters of a model whose types of edges have weights of their own, as of ``HeteroConv``."""
    renamed = {}
    for name, value in values.items():
        head, *leaf = name.split(".")
        if head != "layers":
            renamed[name] = value
            continue
        end = "weight_neighbour" if config.model == "sage" and leaf[1] == "weight" else leaf[1]
        theirs, turned = _LEAVES[config.model][end]
        for key, part in zip(keys, value, strict=True):
            part = part[None] if theirs.startswith("att_") else part.T if turned else part
            renamed[f"layers.{leaf[0]}.convs.<{'___'.join(key)}>.{theirs}"] = part
    return renamed


def to_pyg(config: ModelConfig, values: Tensors, keys: list[tuple[str, str, str]] | None = None) -> Tensors:
    """Our parameters, or their gradients, with PyG's names, orientation and shapes. keys: names of types of edges, for HGT."""
    renamed = {}
    if config.edge_types != "ignore":
        return _of_types(config, values, keys or [])
    if config.model == "hgt":
        for depth in range(config.layers):
            begin = f"layers.{depth}."
            layer = {name.removeprefix(begin): value for name, value in values.items() if name.startswith(begin)}
            renamed |= {begin + name: value for name, value in _hgt_layer(layer, keys or []).items()}
        values = {name: value for name, value in values.items() if not name.startswith("layers.")}
    for name, value in values.items():
        head, *leaf = name.split(".")
        if head == "layers":
            depth, end = leaf[0], ".".join(leaf[1:])
            theirs, turned = _LEAVES[config.model][end]
            if config.model == "rgat" and end == "weight" and config.bases:
                theirs = "basis"
            if config.model == "rgcn" and value.dim() == 4 and value.shape[1] == 1:  # one block is the whole matrix
                value = value[:, 0]
            value = (
                value[None]
                if theirs.startswith("att_") or (theirs == "att" and config.model == "gatv2")
                else value.T
                if turned
                else value
            )
            renamed[f"layers.{depth}.{theirs}"] = value
        elif head in ("norms", "embed_labels"):
            renamed[name] = value
        else:
            target = name.replace("dense.", "layer.lin.") if config.model == "sgc" else name
            renamed[target] = value.T if name.endswith("weight") else value
    return renamed


_WITHOUT_MOD = ("w", "l1", "b1", "l2", "b2")  # parameters that RGATConv has, and does not use


def reference(
    config: ModelConfig, in_width: int, out_width: int, state: Tensors, graph: small_graphs.Arrays | None = None
) -> Reference:
    """The same model with the same weights, in float64. graph: see :class:`Reference`."""
    kind = REFERENCES.get(config.model, Stack) if config.edge_types == "ignore" else Separate
    model = kind(config, in_width, out_width, graph).double()
    for layer in model.modules():
        for name in _WITHOUT_MOD if isinstance(layer, RGATConv) else ():
            delattr(layer, name)
    missing, unexpected = model.load_state_dict(to_pyg(config, state, getattr(model, "keys", None)), strict=False)
    assert not unexpected, unexpected
    assert all("num_batches" in name for name in missing), missing
    return model
