"""The arguments of a distributed model's calls: plain tensors, and the kinds of their rows."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import GraphMeta
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.row_mode import RowMode
from hpcgnn.pyg.rows import EDGES, ENDS, NODES, plain
from hpcgnn.world import same_everywhere

GRAPH = "graph"  # the graph itself, as an argument


@dataclass(frozen=True)
class Rows:
    """An argument that has a row of shape ``tail`` for each node or edge, or is an ``edge_index``, or is the graph.

    of_type: the number of the type of its nodes, or of its edges, if it belongs to one in a dictionary by type. axis: the
    dimension along which its rows are, -2 for (T, n, F), of which PyG's layers make T results at once.
    """

    kind: str
    tail: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    low: float = -1.0  # range of the values
    high: float = 1.0
    has_gradient: bool = False
    of_type: int | None = None
    axis: int = 0


@dataclass(frozen=True)
class Call:
    """The arguments of a call of a model: a tree (of ``torch.utils._pytree``) whose leaves are :class:`Rows` or values."""

    arguments: dict[str, Any]

    @property
    def is_by_type(self) -> bool:
        """Return whether some arguments have rows of one type."""
        return any(isinstance(leaf, Rows) and leaf.of_type is not None for leaf in pytree.tree_leaves(self.arguments))

    def shape(self) -> int:
        """A number that is the same for calls with arguments of the same kinds and types."""
        said = [
            (leaf.kind, leaf.tail, leaf.kind != ENDS and leaf.dtype.is_floating_point, leaf.of_type, leaf.axis)
            if isinstance(leaf, Rows)
            else repr(type(leaf))
            for leaf in pytree.tree_leaves(self.arguments)
        ]
        return zlib.crc32(repr((sorted(self.arguments), said)).encode())


def expected_call(forward: Callable[..., Any], graph: LocalGraph) -> Call | None:
    """The call ``forward(x, edge_index)``, whatever the names of these two, with ``edge_weight`` if it takes that and the graph
    has weights. None if it needs other arguments.
    """
    parameters = inspect.signature(forward).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind not in variadic]
    names = ["x", "edge_index"] if {"x", "edge_index"} <= parameters.keys() else list(parameters)[:2]
    if len(names) < 2 or not {*needed} <= {*names, "edge_weight"} or (names[0] != "x" and names != needed):
        return None
    rows = {names[0]: Rows(NODES, (graph.meta.num_features,), has_gradient=True), names[1]: Rows(ENDS, axis=1)}
    if "edge_weight" in needed or ("edge_weight" in parameters and graph.edge_weight is not None):
        rows["edge_weight"] = Rows(EDGES, low=0.5, high=1.5)
    return Call(rows)


def real_call(arguments: dict[str, Any], graph: LocalGraph) -> Call:
    """The arguments of a real call on all ranks, by name. Collective.

    A tensor has rows of nodes if it has one for each node on every rank, and rows of edges likewise; a name with ``edge`` in it
    decides where both are true. (T, n, F) has rows of nodes, too. In a dictionary by type, as of ``HeteroData``, the key decides.
    """
    paths, tree = pytree.tree_flatten_with_path(arguments)
    of_types = [_type_of_key(path, graph.meta) if _has_rows(leaf) else None for path, leaf in paths]
    num_edges = {leaf.shape[1] for _, leaf in paths if _is_ends(leaf)} or {graph.indices.size}
    kinds = ((str(leaf.dtype), leaf.dim()) if _has_rows(leaf) else type(leaf).__name__ for _, leaf in paths)
    _check_alike(graph, [(str(path), kind) for (path, _), kind in zip(paths, kinds, strict=True)])
    if not paths:
        return Call(arguments)
    mine = np.array([_described(leaf, graph, num_edges) for _, leaf in paths])
    agreed = graph.world.allreduce(mine, "max", "the arguments of a model")
    leaves = [
        _rows_of(str(path), leaf, values, of) for (path, leaf), values, of in zip(paths, agreed, of_types, strict=True)
    ]
    pairs = zip(paths, leaves, strict=True)
    _check_alike(graph, [rows.tail if isinstance(rows, Rows) else _tail(leaf) for (_, leaf), rows in pairs])
    if any(of is not None for of in of_types):
        _check_rows(paths, leaves, graph)
    return Call(pytree.tree_unflatten(leaves, tree))


def _check_alike(graph: LocalGraph, said: list[Any]) -> None:
    why = "the ranks call the model with different arguments: give arguments of the same names and types on all ranks"
    same_everywhere(graph.world, [zlib.crc32(repr(said).encode())], why)


def _type_of_key(path: tuple[Any, ...], meta: GraphMeta) -> tuple[str, int] | None:
    """The kind of type, of nodes or of edges, that the innermost key of a dictionary names, and its number; None for no type."""
    nodes = [each.name for each in meta.node_types]
    for key in (getattr(each, "key", None) for each in reversed(path[1:])):
        if isinstance(key, str) and key in nodes:
            return NODES, nodes.index(key)
        if isinstance(key, tuple) and key in meta.edge_type_names:
            return EDGES, meta.edge_type_names.index(key)
    return None


def _check_rows(paths: list[tuple[Any, Any]], leaves: list[Any], graph: LocalGraph) -> None:
    """Raise HpcgnnError, on every rank, if an argument has not a row for each node or edge of its type. Collective."""
    nodes, edges = graph.nodes_by_type, dict(enumerate(each.shape[1] for each in graph.edge_index_dict.values()))
    edges |= {rows.of_type: leaf.shape[1] for (_, leaf), rows in zip(paths, leaves, strict=True)
              if isinstance(rows, Rows) and rows.kind == ENDS and rows.of_type is not None}  # fmt: skip
    is_wrong, said = np.zeros(len(leaves), np.int64), {}
    for number, ((path, leaf), rows) in enumerate(zip(paths, leaves, strict=True)):
        if isinstance(rows, Rows) and rows.of_type is not None and rows.kind != ENDS:
            wanted = nodes.owned[rows.of_type].numel() if rows.kind == NODES else edges[rows.of_type]
            is_wrong[number] = leaf.shape[0] != wanted
            said[number] = pytree.keystr(path)
    found = np.flatnonzero(graph.world.allreduce(is_wrong, "max", "the arguments of a model"))
    if found.size:
        raise HpcgnnError(
            f"{said[found[0]]} has other rows than this rank's nodes or edges of its type: give graph.x_dict, "
            "graph.of_type(name, values) or graph.edge_attr_dict, and ones or an embedding of graph.of_type(name, "
            "graph.original_ids) for a type without features",
            agreed=True,
        )


def _tail(leaf: Any, axis: int = 0) -> tuple[int, ...]:
    """The shape of a row, where rows are along ``axis``."""
    return tuple(leaf.movedim(axis, 0).shape[1:]) if _has_rows(leaf) else ()


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _is_ends(leaf: Any) -> bool:
    return _has_rows(leaf) and leaf.dim() == 2 and leaf.shape[0] == 2 and leaf.dtype in (torch.int64, torch.int32)


def _described(leaf: Any, graph: LocalGraph, num_edges: set[int]) -> tuple[float, ...]:
    """Return whether a leaf cannot be an ``edge_index``, or rows of nodes, or of edges, or of nodes along the last dimension but
    one; and its least and largest value."""
    if not _has_rows(leaf):
        return 1, 1, 1, 1, -np.inf, -np.inf
    values = leaf.detach()
    finite = values[values.isfinite()].double() if values.numel() else values.double()
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (np.inf, -np.inf)
    rows, inner = leaf.shape[0], leaf.dim() > 2 and leaf.shape[-2] == graph.num_nodes
    return not _is_ends(leaf), rows != graph.num_nodes, rows not in num_edges, not inner, -low, high


def _rows_of(path: str, leaf: Any, agreed: np.ndarray, of: tuple[str, int] | None) -> Any:
    not_ends, not_nodes, not_edges, not_inner = agreed[:4].astype(bool)
    of_type = None
    if of is not None:  # its number of rows may be any
        kind, of_type = of
        not_ends, not_nodes, not_edges = kind == NODES or not_ends, kind == EDGES, kind == NODES
    if isinstance(leaf, LocalGraph):
        return Rows(GRAPH, (leaf.meta.num_features,))
    axis = 1 if not not_ends else -2 if not_nodes and not_edges and not not_inner else 0
    if not_ends and not_nodes and not_edges and not axis:
        return leaf
    low, high = (-float(agreed[4]), float(agreed[5])) if np.isfinite(agreed[4:]).all() else (0.0, 1.0)
    is_nodes = bool(axis) or (not not_nodes and ("edge" not in path or not_edges))
    kind = ENDS if not not_ends else NODES if is_nodes else EDGES
    has_gradient = leaf.is_floating_point() and (kind == NODES or leaf.requires_grad)
    return Rows(kind, () if kind == ENDS else _tail(leaf, axis), leaf.dtype, low, high, has_gradient, of_type, axis)


_KEPT = 8


class Given:
    """Arguments of calls, made what layers take."""

    def __init__(self, graph: LocalGraph) -> None:
        self.graph = graph
        self.before_new: Callable[[Call], None] | None = None  # a rehearsal of each call of a new kind
        self._signature: inspect.Signature | None = None  # of the model's forward
        self._kinds: dict[Any, list[Rows | None]] = {}  # by what is the same in calls on all ranks
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def prepare(
        self, model: torch.nn.Module, mode: RowMode, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as plain, dense tensors whose rows ``mode`` knows. Collective in the first call of each kind."""
        self._signature = self._signature or inspect.signature(model.forward)
        bound = self._signature.bind(*inputs, **named)
        first = next(iter(bound.arguments), None)
        bound.arguments = {
            name: pytree.tree_map(lambda leaf, name=name: self._plain(model, name, leaf, dense=name == first), value)
            for name, value in bound.arguments.items()
        }
        leaves, tree = pytree.tree_flatten(dict(bound.arguments))
        described = str(tree), *(type(leaf).__name__ for leaf in leaves)
        if described not in self._kinds:
            call = real_call(dict(bound.arguments), self.graph)
            if self.before_new is not None:
                self.before_new(call)
            kinds = pytree.tree_leaves(call.arguments)
            self._kinds[described] = [leaf if isinstance(leaf, Rows) else None for leaf in kinds]
        for leaf, of in zip(leaves, self._kinds[described], strict=True):
            if of is not None and of.kind == GRAPH:
                mode.mark([leaf.x, leaf.y, leaf.original_ids, *leaf.masks.values()], NODES)
                mode.mark(leaf.edge_weight, EDGES)
            elif of is not None and leaf is not self.graph.edge_index:
                mode.mark(leaf, of.kind, of.axis % leaf.dim(), self._types(of))
        return bound.args, bound.kwargs

    def _types(self, of: Rows) -> tuple[int, ...]:
        """The types of nodes of an argument, see :class:`hpcgnn.pyg.rows.Role`."""
        if of.of_type is None or of.kind == NODES:
            return () if of.of_type is None else (of.of_type,)
        edges = self.graph.meta.edge_types[of.of_type]
        return edges.source, edges.destination

    def _plain(self, model: torch.nn.Module, name: str, leaf: Any, *, dense: bool) -> Any:
        """A tensor of torch's own class: subclasses do not reach kernels. The same object is made for the same tensor."""
        is_tensor = isinstance(leaf, torch.Tensor)
        if (leaf.layout == torch.strided and is_plain(leaf)) if is_tensor else type(leaf).__name__ != "SparseTensor":
            return leaf
        for given, made in self._made:
            if given is leaf:
                return made
        if is_tensor and leaf.layout == torch.strided:
            made = plain(leaf)
        elif is_tensor and leaf.layout == torch.sparse_csr and dense:
            made = leaf.to_dense()
        else:
            raise HpcgnnError(
                f"{type(model).__name__} cannot be called with a sparse matrix as {name}: a distributed model takes "
                "graph.edge_index, and values of edges as a tensor of their own"
            )
        self._made = [*self._made[1 - _KEPT :], (leaf, made)]
        return made
