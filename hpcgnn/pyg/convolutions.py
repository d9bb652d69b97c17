"""PyG's layers on many ranks: their own code, with another ``propagate``.

In a linear layer, ``propagate`` becomes an aggregator (L, S and R). Any other layer keeps its own, with each node tensor from
which messages are computed replaced by a pair (rows of owned and halo nodes, owned rows).
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import (
    APPNP,
    Aggregation,
    ChebConv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HGTConv,
    LEConv,
    LGConv,
    MessagePassing,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import get_laplacian, scatter

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.kernels.again import once
from hpcgnn.nn.plans import check_degrees
from hpcgnn.nn.whole_graph import mean_over_ranks
from hpcgnn.pyg.bridge import Bridge, Kept, widened
from hpcgnn.pyg.rows import EDGES, ENDS, NODES, plain


class OnRanks(functools.partial[Any]):
    """A method for many ranks, with the module and the exchanges that it uses, in the place of a method of a module.

    It belongs to one module. A copy of the module alone would run the original, so it is refused.
    """

    module_name: str
    before: Any  # the entry of the module's __dict__ that was replaced, or None

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self._refusal("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._refusal("saved")

    def _refusal(self, done: str) -> HpcgnnError:
        return HpcgnnError(
            f"this {self.module_name} is a part of a distributed model and cannot be {done} alone: it is {done} with the whole "
            "model, or as a part of the model that was given to hpcgnn.distribute"
        )


def replace_method(module: torch.nn.Module, name: str, function: Callable[..., Any], *first: Any) -> OnRanks:
    """Let ``module.name`` be ``function`` with these first arguments until :func:`restore_methods`."""
    method = OnRanks(function, *first)
    method.module_name, method.before = type(module).__name__, vars(module).get(name)
    setattr(module, name, method)
    return method


def restore_methods(module: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Undo :func:`replace_method` on a copy of a module. memo: of ``copy.deepcopy``, for methods that users had replaced."""
    for name, before in [each for each in vars(module).items() if isinstance(each[1], OnRanks)]:
        while isinstance(before, OnRanks):
            before = before.before
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, copy.deepcopy(before, memo))


Edges = tuple[Tensor, Tensor]


class Normaliser:
    """Edge weights that depend on degrees, by PyG's functions with the degrees of halo nodes, for the layers of one model.

    Results for the graph's own edges, or for tensors that were already used in the previous pass, are kept, and the same objects
    are returned from then on, so that they get a plan (:meth:`hpcgnn.pyg.bridge.Bridge.operator`).
    """

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self._kept: Kept[Edges] = Kept(bridge.most_kept)

    def gcn_norm(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        improved: bool = False,
        add_self_loops: bool = True,
        flow: str = "source_to_target",
        dtype: torch.dtype | None = None,
    ) -> Edges:
        """``gcn_norm`` of ``torch_geometric.nn.conv.gcn_conv``, for ids in which halo nodes follow the owned ones. Collective."""
        is_plain = self.bridge.is_graphs(edge_index, edge_weight) and add_self_loops and not improved
        options = improved, add_self_loops, dtype
        return self._once(self._gcn_norm, edge_index, edge_weight, options, "gcn" if is_plain else "fixed")

    def _gcn_norm(
        self, edges: Tensor, weight: Tensor | None, improved: bool, loops: bool, dtype: torch.dtype | None
    ) -> Edges:
        nodes = self.bridge.exact.of(self.bridge.types_of(edges))
        owned = nodes.num_owned

        def degrees(values: Tensor, index: Tensor, **_: Any) -> Tensor:
            degree = scatter(values, index, 0, owned, "sum")
            if weight is not None:
                has_edges = torch.bincount(index, minlength=owned) > 0
                self.bridge.exact.know_ids()
                ids = nodes.original_ids[:owned].to(degree.device)
                check_degrees(degree.detach()[has_edges], ids[has_edges], self.bridge.graph.world)
            return nodes.extended(degree)

        norm = _calling(gcn_norm, {"scatter": degrees})
        return norm(edges, weight, owned, improved, loops, dtype=dtype)

    def scaled_laplacian(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        edge_weight: Tensor | None,
        normalization: str | None,
        lambda_max: Tensor | float | None = None,
        dtype: torch.dtype | None = None,
        batch: Tensor | None = None,
    ) -> Edges:
        """``ChebConv.__norm__``: 2 L / lambda_max - I, where lambda_max None stands for twice the largest entry of L.
        Collective.
        """
        if batch is not None:
            raise HpcgnnError("ChebConv with batch, for several graphs at once, cannot be distributed")
        options = normalization, dtype, None if lambda_max is None else float(lambda_max)
        return self._once(self._scaled_laplacian, edge_index, edge_weight, options, "fixed")

    def _scaled_laplacian(
        self,
        edges: Tensor,
        weight: Tensor | None,
        normalization: str | None,
        dtype: torch.dtype | None,
        largest: float | None,
    ) -> Edges:
        exact = self.bridge.exact.of(self.bridge.types_of(edges))

        def degrees(values: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
            # sums of the weights of each node's out-edges, on all ranks at which they end
            degree = exact.summed(scatter(values, index, 0, exact.num_extended, "sum"))
            return degree if normalization is None else exact.extended(degree)

        laplacian = _calling(get_laplacian, {"scatter": degrees})
        edges, weight = laplacian(edges, weight, normalization, dtype, exact.num_owned)
        if largest is None:
            mine = np.array([weight.detach().max().item() if weight.numel() else -np.inf])
            largest = 2 * float(self.bridge.messages.world.allreduce(mine, "max")[0])
        weight = 2 * weight / largest
        weight = torch.where(weight == float("inf"), 0, weight)
        return edges, weight - (edges[0] == edges[1]).to(weight.dtype)

    def _once(
        self, make: Callable[..., Edges], edge_index: Tensor, weight: Tensor | None, options: tuple[Any, ...], kind: str
    ) -> Edges:
        """``make(edge_index, weight, *options)``, or its result in an earlier pass. kind: see :meth:`Bridge.note_kind`."""
        key = make.__name__, *options
        result = self._kept.find(edge_index, weight, key)
        if result is None:
            with torch._C.DisableTorchFunction():
                result = make(edge_index, weight, *options)
            comes_again, is_trained = self.bridge.comes_again, weight is not None and weight.requires_grad
            if not is_trained and (comes_again(key, edge_index, weight) or self.bridge.is_graphs(edge_index, weight)):
                self._kept.keep(edge_index, weight, result, key)
                self.bridge.note_kind(*result, kind)
        types = self.bridge.types_of(edge_index)
        self.bridge.mode.mark(result[0], ENDS, 1, types)
        self.bridge.mode.mark(result[1], EDGES, 0, types)
        return result


# Layers whose message is x_j, or x_j times a weight of the edge, and the names of these two in their ``propagate``.
LINEAR: dict[type[MessagePassing], tuple[str, str | None]] = {
    APPNP: ("x", "edge_weight"),
    ChebConv: ("x", "norm"),
    GCN2Conv: ("x", "edge_weight"),
    GCNConv: ("x", "edge_weight"),
    GINConv: ("x", None),
    GraphConv: ("x", "edge_weight"),
    LEConv: ("a", "edge_weight"),
    LGConv: ("x", "edge_weight"),
    SAGEConv: ("x", None),
    SGConv: ("x", "edge_weight"),
    SSGConv: ("x", "edge_weight"),
    TAGConv: ("x", "edge_weight"),
}
_SUMS, _MEANS = ("add", "sum"), ("mean",)
_HOOKS = tuple(f"_{kind}_forward" for kind in ("propagate", "message", "aggregate", "edge_update"))
# The methods that compute any layer's messages. Their arguments name the tensors from which messages are computed.
_MADE_OF = {"propagate": ("message", "aggregate", "update"), "edge_updater": ("edge_update",)}


def adapt(layer: MessagePassing, number: int, bridge: Bridge, normaliser: Normaliser, name: str) -> None:
    """Make ``layer`` run on many ranks, with the exchanges of ``bridge``. name: of the layer in its model."""
    if layer.flow != "source_to_target":
        raise HpcgnnError(
            f"{name} ({type(layer).__name__}) cannot be distributed: its flow is {layer.flow}, but a rank holds the edges "
            "that end at its nodes; build it with flow='source_to_target' and give it reversed edges"
        )
    forget_caches(layer)
    _replace_functions(layer, {"gcn_norm": normaliser.gcn_norm})
    if isinstance(layer, ChebConv):
        replace_method(layer, "__norm__", normaliser.scaled_laplacian)
    if isinstance(layer, HANConv):
        _replace_functions(layer, {"group": functools.partial(_semantic_attention, bridge)})
    on_ranks = _Layer(layer, number, bridge)
    if type(layer) is HGTConv:  # its messages come from the nodes of all types at once
        replace_method(layer, "_construct_src_node_feat", on_ranks.sources_by_type, layer._construct_src_node_feat)
        replace_method(layer, "forward", on_ranks.over_types, layer.forward)
        return
    if _is_linear(layer):
        replace_method(layer, "propagate", on_ranks.aggregate, *LINEAR[type(layer)])
        return
    if layer.decomposed_layers > 1:
        raise HpcgnnError(
            f"{name} ({type(layer).__name__}) cannot be distributed with decomposed_layers={layer.decomposed_layers}: build it "
            "with decomposed_layers=1; its rows travel before they are cut in pieces"
        )
    for name, functions in _MADE_OF.items():
        # PyG's hooks before ``propagate`` would work, but those before ``edge_updater`` run after rows have been gathered.
        parameters = {each: inspect.signature(getattr(layer, each)).parameters.keys() for each in functions}
        # The node tensors from which messages take the source's row: ``x`` for an argument ``x_j``.
        from_sources = {
            each.removesuffix("_j")
            for each in set().union(*parameters.values()) - {"edge_index_j", "size_j"}
            if each.endswith("_j")
        }
        own: dict[str, Any] = {}
        original = getattr(layer, name)
        for function in functions:
            if whole := from_sources & parameters[function]:
                replace_method(layer, function, _with_own_rows, getattr(layer, function), own, whole)
        kind = EDGES if name == "edge_updater" else NODES
        over_halo = functools.partial(on_ranks.over_halo, original, from_sources, own, kind)
        replace_method(layer, name, bridge.run, layer, over_halo)
    for module in layer.modules():
        if isinstance(module, Aggregation) and "max_num_elements" in inspect.signature(module.forward).parameters:
            replace_method(module, "forward", _padded_alike, module.forward, bridge)


def forget_caches(layer: MessagePassing) -> None:
    """Drop the edges that a layer with ``cached=True`` has kept, because they belong to the graph that it saw before."""
    for name in vars(layer):
        if name.startswith("_cached_"):
            setattr(layer, name, None)


def _is_linear(layer: MessagePassing) -> bool:
    """Return whether the layer is one of :data:`LINEAR`, and no subclass or option made it nonlinear."""
    return (
        type(layer) in LINEAR
        and layer.aggr in (*_SUMS, *_MEANS)
        and not layer.explain
        and not any(hooks for name, hooks in vars(layer).items() if name.endswith("_hooks") and name.startswith(_HOOKS))
    )


class _Layer:
    """A layer of a model on the ranks of a bridge. number: of the layer in its model."""

    def __init__(self, layer: MessagePassing, number: int, bridge: Bridge) -> None:
        self.layer, self.number, self.bridge = layer, number, bridge

    def aggregate(
        self, name: str, weight_name: str | None, edge_index: Tensor, size: Any = None, **given: Any
    ) -> Tensor:
        """Replaces ``propagate`` of a linear layer."""
        edge_index, bridge, layer = self._plain_edges(edge_index), self.bridge, self.layer
        x = given[name][0] if isinstance(given[name], tuple) else given[name]
        weight = None if weight_name is None else given[weight_name]
        dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
        with torch._C.DisableTorchFunction():  # nothing in here is the model's
            x, weight = widened(x.to(dtype)), None if weight is None else widened(weight.to(dtype))
            operator = bridge.operator(self.number, edge_index, weight, x.dtype, mean=layer.aggr in _MEANS)
            axis = layer.node_dim % x.dim()
            rows = x.movedim(axis, 0) if axis else x  # the same tensor where it may be: all types of edges send it once
            z = operator(rows if x.dim() == 2 else rows.reshape(rows.shape[0], math.prod(rows.shape[1:])))
            z = z.view(z.shape[0], *rows.shape[1:]).movedim(0, axis)
            if isinstance(layer, LEConv):  # messages a_j - b_i
                z = z - given["b"] * self._operator_of_own(edge_index, weight, x.dtype)
        return bridge.mode.mark(z.to(dtype), NODES, axis, bridge.types_of(edge_index)[1:])

    def _operator_of_own(self, edges: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        """(n, 1) sums, or averages, of the weights of each node's in-edges."""
        owned = self.bridge.exact.of_ends(self.bridge.types_of(edges))[1].num_owned
        zeros = torch.zeros(owned, dtype=dtype, device=edges.device)
        counts = zeros.index_add(0, edges[1], zeros.new_ones(edges.shape[1]))
        total = counts if weight is None else zeros.index_add(0, edges[1], weight)
        return (total / counts.clamp(min=1) if self.layer.aggr in _MEANS else total)[:, None]

    def over_halo(
        self,
        original: Callable[..., Any],
        from_sources: set[str],
        own: dict[str, Any],
        kind: str,
        edge_index: Tensor,
        size: Any = None,
        **given: Any,
    ) -> Any:
        """For ``propagate`` and ``edge_updater`` of any layer: calls the original with rows of halo nodes appended.

        own: is given the arguments without these rows, for :func:`_with_own_rows`. kind: of the result's rows.
        """
        edge_index, bridge = self._plain_edges(edge_index), self.bridge
        types = bridge.types_of(edge_index)
        sources, destinations = bridge.exact.of_ends(types)
        own.update(given)
        try:
            with torch._C.DisableTorchFunction():
                for name in sorted(from_sources & given.keys()):  # the same order on all ranks: each is an exchange
                    if given[name] is not None:
                        given[name] = self._sources_extended(given[name], name, types)
            with bridge.mode.inside(edge_index):
                size = sources.num_extended, destinations.num_owned
                result = original(edge_index, size=size, **given)
                result = result if edge_index.shape[1] else _tied(result, given)
        finally:
            own.clear()
        of_nodes = kind == NODES and isinstance(result, Tensor)
        axis = self.layer.node_dim % result.dim() if of_nodes else 0
        return bridge.mode.mark(result, kind, axis, types[1:] if of_nodes else types)

    def _sources_extended(self, value: Any, name: str, types: tuple[int, ...]) -> tuple[Any, Any]:
        source, target = value if isinstance(value, (tuple, list)) else (value, value)
        target = None if target is source and len({*types}) > 1 else target  # as TransformerConv's keys
        if isinstance(source, Tensor):
            count, owned = source.shape[self.layer.node_dim], self.bridge.exact.of(types).num_owned
            if count != owned:
                raise HpcgnnError(
                    f"{type(self.layer).__name__} cannot be distributed: its {name} has {count} rows, but this rank has {owned} "
                    "nodes; a parameter with a row for each node of the whole graph cannot be divided among ranks"
                )
            source = self.bridge.extended(self.number, source, self.layer.node_dim, types)
        return source, target

    def over_types(
        self, original: Callable[..., Any], x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]
    ) -> dict[str, Tensor]:
        """Replaces ``forward`` of ``HGTConv``, whose own code appends the rows of all types of nodes to each other."""
        edges = {key: self._plain_edges(edge_index) for key, edge_index in edge_index_dict.items()}
        types = {
            end: (of,)
            for key, each in edges.items()
            for end, of in zip(key[::2], self.bridge.types_of(each), strict=False)
        }
        if not all(self.bridge.types_of(each) for each in edges.values()):
            raise HpcgnnError(
                "HGTConv was given edges of which no type is known: give the model graph.edge_index_dict as an argument",
                agreed=True,
            )
        with torch._C.DisableTorchFunction():
            result = original(x_dict, edges)
        return {name: self.bridge.mode.mark(rows, NODES, 0, types[name]) for name, rows in result.items()}

    def sources_by_type(
        self,
        original: Callable[..., Any],
        keys: dict[str, Tensor],
        values: dict[str, Tensor],
        edge_index_dict: dict[Any, Tensor],
    ) -> Any:
        """Replaces the method of ``HGTConv`` that takes keys and values (n_t, H, D) of the sources of each type of edges."""
        types = {key[0]: self.bridge.types_of(each) for key, each in edge_index_dict.items()}
        wide = {
            name: self.bridge.extended(self.number, torch.cat((keys[name], values[name]), 1), 0, of)
            for name, of in types.items()
        }
        keys, values = ({name: rows.chunk(2, 1)[part] for name, rows in wide.items()} for part in (0, 1))
        return original(keys, values, edge_index_dict)

    def _plain_edges(self, edge_index: Any) -> Tensor:
        name = type(self.layer).__name__
        # a checkpoint repeats calls in the backward pass
        if not self.bridge.in_pass and torch._C._current_graph_task_id() == -1:
            raise HpcgnnError(
                f"{name} of a distributed model was called outside of a call of the model, where nothing is checked: "
                "call the model itself, and let its forward do what encode and other methods do"
            )
        if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            kind = edge_index.layout if isinstance(edge_index, Tensor) else type(edge_index).__name__
            raise HpcgnnError(
                f"{name} was given edges as a sparse matrix ({kind}): a distributed model takes graph.edge_index, "
                "or a (2, e) tensor made of it"
            )
        return edge_index if is_plain(edge_index) else self.bridge.mode.hand_on(edge_index, plain(edge_index))


def _with_own_rows(
    original: Callable[..., Any], own: dict[str, Any], names: set[str], *inputs: Any, **given: Any
) -> Any:
    """Replaces ``message``, ``aggregate`` or ``update`` that take an argument such as ``x`` as it was given to ``propagate``."""
    return original(*inputs, **given | {name: own[name] for name in names & given.keys()})


def _tied(result: Tensor, given: dict[str, Any]) -> Tensor:
    """``result`` with a dependence on ``given``. The result of a rank without edges may have none, and its backward pass would
    then leave out exchanges for which other ranks wait.
    """
    for one in given.values():
        for value in one if isinstance(one, tuple) else (one,):
            if isinstance(value, Tensor) and value.requires_grad:
                result = result + value.flatten()[:0].sum()
    return result


def _semantic_attention(
    bridge: Bridge, of_edges: list[Tensor], q: Tensor, transform: torch.nn.Module
) -> tuple[Tensor | None, Tensor | None]:
    """Replaces ``group`` of ``HANConv``: the sum of the (n, F) results of R types of edges, weighted by their means over the
    nodes of all ranks, and the R weights.
    """
    if not of_edges:
        return None, None
    out = torch.stack(of_edges)
    with torch._C.DisableTorchFunction():
        rows = torch.tanh(transform(out)).transpose(0, 1)
        mean, _ = mean_over_ranks(rows.flatten(1), bridge.messages.world)
        weight = (q * mean.view(rows.shape[1:]).to(out.dtype)).sum(-1).softmax(0)
        result = (weight[:, None, None] * out).sum(0)
    return bridge.mode.hand_on(of_edges[0], result), weight


def _padded_alike(
    original: Callable[..., Any], bridge: Bridge, x: Tensor, index: Any = None, *others: Any, **named: Any
) -> Tensor:
    """Replaces an aggregation whose result depends on the largest in-degree, to which it pads: the largest one over all ranks
    is used.
    """
    mine = np.array([int(torch.bincount(index).max()) if index is not None and index.numel() else 0])
    most = int(once(lambda: bridge.messages.world.allreduce(mine, "max"))[0])
    return original(x, index, *others, **(named | {"max_num_elements": most}))


def _replace_functions(layer: torch.nn.Module, replacements: dict[str, Callable[..., Any]]) -> None:
    """Replace methods of the layer that call functions of these names, without a change of the class and its module."""
    for name, method in inspect.getmembers(layer, inspect.ismethod):
        function = method.__func__
        if isinstance(function, types.FunctionType) and set(replacements) & set(function.__code__.co_names):
            replace_method(layer, name, _calling(function, replacements), layer)


def _calling(function: types.FunctionType, replacements: dict[str, Callable[..., Any]]) -> types.FunctionType:
    """A copy of ``function`` that calls other functions in place of those with these names."""
    found = function.__globals__ | replacements
    other = types.FunctionType(function.__code__, found, function.__name__, function.__defaults__, function.__closure__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other
