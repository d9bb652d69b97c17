"""PyG's layers on many ranks: their own code, with another ``propagate``.

In a linear layer, ``propagate`` becomes an aggregator (L, S and R, quantized and overlapped). Any other layer keeps its own
``propagate``, which is given the rows of halo nodes: each node tensor from which messages are computed becomes a pair (extended
rows, owned rows).
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import (
    APPNP,
    Aggregation,
    ChebConv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    LEConv,
    LGConv,
    MessagePassing,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
)

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.pyg.bridge import Bridge, widened
from hpcgnn.pyg.methods import OnRanks, replace_method
from hpcgnn.pyg.normalise import Normaliser
from hpcgnn.pyg.rows import EDGES, NODES, plain

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
        replace_method(layer, "__norm__", OnRanks(normaliser.scaled_laplacian))
    if _is_linear(layer):
        replace_method(layer, "propagate", OnRanks(_propagate, layer, LINEAR[type(layer)], number, bridge))
        return
    if layer.decomposed_layers > 1:
        raise HpcgnnError(
            f"{name} ({type(layer).__name__}) cannot be distributed with decomposed_layers={layer.decomposed_layers}: build it "
            "with decomposed_layers=1; its rows travel before they are cut in pieces"
        )
    for name, functions in _MADE_OF.items():
        from_sources = _from_sources(layer, functions)
        # PyG's hooks before ``propagate`` would work, but those before ``edge_updater`` run after rows have been gathered.
        original = getattr(layer, name)
        own: dict[str, Any] = {}
        kind = EDGES if name == "edge_updater" else NODES
        for function in functions:
            whole = from_sources & inspect.signature(getattr(layer, function)).parameters.keys()
            if whole:
                replace_method(layer, function, OnRanks(_with_own_rows, getattr(layer, function), own, whole))
        replace_method(layer, name, OnRanks(_with_halo, layer, number, bridge, original, from_sources, own, kind))
    for module in layer.modules():
        if isinstance(module, Aggregation) and "max_num_elements" in inspect.signature(module.forward).parameters:
            replace_method(module, "forward", OnRanks(_padded_alike, module.forward, bridge))


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
        and not any(hooks for name, hooks in vars(layer).items() if name.endswith("_hooks") and _is_of_messages(name))
    )


def _is_of_messages(name: str) -> bool:
    return any(name.startswith(f"_{kind}_forward") for kind in ("propagate", "message", "aggregate", "edge_update"))


def _propagate(
    layer: MessagePassing,
    names: tuple[str, str | None],
    number: int,
    bridge: Bridge,
    edge_index: torch.Tensor,
    size: Any = None,
    **given: Any,
) -> torch.Tensor:
    """Replaces ``propagate`` of a linear layer."""
    edge_index = _plain_edges(layer, bridge, edge_index)
    name, weight_name = names
    x = given[name][0] if isinstance(given[name], tuple) else given[name]
    weight = None if weight_name is None else given[weight_name]
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    with torch._C.DisableTorchFunction():  # nothing in here is the model's
        x, weight = widened(x.to(dtype)), None if weight is None else widened(weight.to(dtype))
        flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        operator = bridge.operator(number, edge_index, weight, x.dtype, mean=layer.aggr in _MEANS)
        z = operator(flat)
        if isinstance(layer, LEConv):  # messages a_j - b_i
            z = z - given["b"] * operator_of_own(bridge, edge_index, weight, x.dtype, mean=layer.aggr in _MEANS)
    return bridge.mode.mark(z.view(x.shape).to(dtype), NODES)


def operator_of_own(
    bridge: Bridge, edge_index: torch.Tensor, weight: torch.Tensor | None, dtype: torch.dtype, *, mean: bool
) -> torch.Tensor:
    """(n, 1) sums, or averages, of the weights of each node's in-edges."""
    owned = bridge.graph.num_nodes
    zeros = torch.zeros(owned, dtype=dtype, device=edge_index.device)
    counts = zeros.index_add(0, edge_index[1], zeros.new_ones(edge_index.shape[1]))
    total = counts if weight is None else zeros.index_add(0, edge_index[1], weight)
    return (total / counts.clamp(min=1) if mean else total)[:, None]


# -- layers of any kind ------------------------------------------------------------------------------------------------


def _from_sources(layer: MessagePassing, functions: tuple[str, ...]) -> set[str]:
    """The names of the node tensors from which messages take the source's row (``x`` for an argument ``x_j``)."""
    names = {name for function in functions for name in inspect.signature(getattr(layer, function)).parameters}
    return {name.removesuffix("_j") for name in names - {"edge_index_j", "size_j"} if name.endswith("_j")}


def _with_halo(
    layer: MessagePassing,
    number: int,
    bridge: Bridge,
    original: Callable[..., Any],
    from_sources: set[str],
    own: dict[str, Any],
    kind: str,
    edge_index: torch.Tensor,
    size: Any = None,
    **given: Any,
) -> Any:
    """Replaces ``propagate`` and ``edge_updater`` of any layer: calls the original with rows of halo nodes appended.

    own: is given the arguments without these rows, for :func:`_with_own_rows`. kind: of the result's rows.
    """
    edge_index = _plain_edges(layer, bridge, edge_index)
    own.update(given)
    try:
        with torch._C.DisableTorchFunction():
            for name in sorted(from_sources & given.keys()):  # the same order on all ranks: each is an exchange
                if given[name] is not None:
                    given[name] = _sources_extended(given[name], number, bridge, layer, name)
        with bridge.mode.inside(edge_index):
            result = original(edge_index, size=(bridge.num_extended, bridge.graph.num_nodes), **given)
            result = result if edge_index.shape[1] else _tied(result, given)
    finally:
        own.clear()
    of_nodes = kind == NODES and isinstance(result, torch.Tensor)
    return bridge.mode.mark(result, kind, layer.node_dim % result.dim() if of_nodes else 0)


def _with_own_rows(
    original: Callable[..., Any], own: dict[str, Any], names: set[str], *inputs: Any, **given: Any
) -> Any:
    """Replaces ``message``, ``aggregate`` or ``update`` that take an argument such as ``x`` as it was given to ``propagate``."""
    return original(*inputs, **given | {name: own[name] for name in names & given.keys()})


def _tied(result: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """``result`` with a dependence on ``given``. The result of a rank without edges may have none, and its backward pass would
    then leave out exchanges for which other ranks wait.
    """
    values = [value for one in given.values() for value in (one if isinstance(one, tuple) else (one,))]
    for value in values:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            result = result + value.flatten()[:0].sum()
    return result


def _padded_alike(
    original: Callable[..., Any], bridge: Bridge, x: torch.Tensor, index: Any = None, *others: Any, **named: Any
) -> torch.Tensor:
    """Replaces an aggregation whose result depends on the largest in-degree, to which it pads: the largest one over all ranks
    is used.
    """
    mine = np.array([int(torch.bincount(index).max()) if index is not None and index.numel() else 0])
    most = int(bridge.messages.world.allreduce(mine, "max")[0])
    return original(x, index, *others, **(named | {"max_num_elements": most}))


def _sources_extended(value: Any, number: int, bridge: Bridge, layer: MessagePassing, name: str) -> tuple[Any, Any]:
    source, target = value if isinstance(value, (tuple, list)) else (value, value)
    if isinstance(source, torch.Tensor):
        count, owned = source.shape[layer.node_dim], bridge.graph.num_nodes
        if count != owned:
            raise HpcgnnError(
                f"{type(layer).__name__} cannot be distributed: its {name} has {count} rows, but this rank has {owned} nodes; "
                "a parameter with a row for each node of the whole graph cannot be divided among ranks"
            )
        source = bridge.extended(number, source, layer.node_dim)
    return source, target


def _plain_edges(layer: MessagePassing, bridge: Bridge, edge_index: Any) -> torch.Tensor:
    if (
        not bridge.in_pass and torch._C._current_graph_task_id() == -1
    ):  # a checkpoint repeats calls in the backward pass
        raise HpcgnnError(
            f"{type(layer).__name__} of a distributed model was called outside of a call of the model, where nothing is checked: "
            "call the model itself, and let its forward do what encode and other methods do"
        )
    if not isinstance(edge_index, torch.Tensor) or edge_index.layout != torch.strided:
        kind = edge_index.layout if isinstance(edge_index, torch.Tensor) else type(edge_index).__name__
        raise HpcgnnError(
            f"{type(layer).__name__} was given edges as a sparse matrix ({kind}): a distributed model takes graph.edge_index, "
            "or a (2, e) tensor made of it"
        )
    return edge_index if is_plain(edge_index) else plain(edge_index)


# -- functions that a layer's code calls -------------------------------------------------------------------------------


def _replace_functions(layer: torch.nn.Module, replacements: dict[str, Callable[..., Any]]) -> None:
    """Replace methods of the layer that call functions of these names by copies that call other functions.

    The class and its module stay unchanged.
    """
    for name, method in inspect.getmembers(layer, inspect.ismethod):
        function = method.__func__
        if isinstance(function, types.FunctionType) and set(replacements) & set(function.__code__.co_names):
            found = function.__globals__ | replacements
            copy = types.FunctionType(
                function.__code__, found, function.__name__, function.__defaults__, function.__closure__
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            replace_method(layer, name, OnRanks(copy, layer))
