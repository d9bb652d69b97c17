"""A tiny graph for rehearsals, whole and in parts, with arguments like those of a model's real call.

The graph is directed and has self-loops, parallel edges and an isolated node. The in-edges of a node are in no order. The parts
have their nodes, and therefore in-edges, in another order than the whole graph, as parts of real graphs have.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from hpcgnn.data.graph_file import GraphMeta
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.rows import EDGES, ENDS, NODES
from hpcgnn.world import World, same_everywhere

RANKS, NUM_NODES, NUM_EDGES = 3, 26, 127
GRAPH = "graph"  # the graph itself, as an argument


@dataclass(frozen=True)
class Rows:
    """An argument that has a row of shape ``tail`` for each node or edge, or is an ``edge_index``, or is the graph.

    low, high: range of the values.
    """

    kind: str
    tail: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    low: float = -1.0
    high: float = 1.0
    has_gradient: bool = False

    def draw(self, generator: np.random.Generator, dtype: torch.dtype, num_edges: int) -> torch.Tensor:
        """Random rows for the tiny graph, in ``dtype`` in place of other floating-point types."""
        shape = (num_edges if self.kind == EDGES else NUM_NODES, *self.tail)
        high = self.high if self.high > self.low else self.low + 1
        if self.dtype.is_floating_point:
            return torch.from_numpy(generator.uniform(self.low, high, shape)).to(dtype)
        return torch.from_numpy(generator.integers(int(self.low), int(self.high) + 1, shape)).to(self.dtype)


@dataclass(frozen=True)
class Call:
    """The arguments of a call of a model: a tree (of ``torch.utils._pytree``) whose leaves are :class:`Rows` or values."""

    arguments: dict[str, Any]

    def leaves(self) -> Iterator[Rows]:
        """The arguments that have rows."""
        return (leaf for leaf in pytree.tree_leaves(self.arguments) if isinstance(leaf, Rows))

    def shape(self) -> int:
        """A number that is the same for calls with arguments of the same kinds and types."""
        said = [
            (leaf.kind, leaf.tail, leaf.kind != ENDS and leaf.dtype.is_floating_point)
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
    rows = {names[0]: Rows(NODES, (graph.meta.num_features,), has_gradient=True), names[1]: Rows(ENDS)}
    if "edge_weight" in needed or ("edge_weight" in parameters and graph.edge_weight is not None):
        rows["edge_weight"] = Rows(EDGES, low=0.5, high=1.5)
    return Call(rows)


def real_call(arguments: dict[str, Any], graph: LocalGraph) -> Call:
    """The arguments of a real call on all ranks, by name. Collective.

    A tensor has rows of nodes if it has one for each node on every rank, and rows of edges likewise; a name with ``edge`` in it
    decides where both are true.
    """
    paths, tree = pytree.tree_flatten_with_path(arguments)
    num_edges = {leaf.shape[1] for _, leaf in paths if _is_ends(leaf)} or {graph.indices.size}
    said = [(str(path), _type_of(leaf)) for path, leaf in paths]
    same_everywhere(
        graph.world,
        [zlib.crc32(repr(said).encode())],
        "the ranks call the model with different arguments: give arguments of the same names and types on all ranks",
    )
    if not paths:
        return Call(arguments)
    mine = np.array([_described(leaf, graph, num_edges) for _, leaf in paths])
    agreed = graph.world.allreduce(mine, "max", "the arguments of a model")
    leaves = [_rows_of(str(path), leaf, values) for (path, leaf), values in zip(paths, agreed, strict=True)]
    return Call(pytree.tree_unflatten(leaves, tree))


def _type_of(leaf: Any) -> object:
    return (
        (str(leaf.dtype), () if _is_ends(leaf) else tuple(leaf.shape[1:])) if _has_rows(leaf) else type(leaf).__name__
    )


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _is_ends(leaf: Any) -> bool:
    return _has_rows(leaf) and leaf.dim() == 2 and leaf.shape[0] == 2 and leaf.dtype in (torch.int64, torch.int32)


def _described(leaf: Any, graph: LocalGraph, num_edges: set[int]) -> tuple[float, ...]:
    """Return whether a leaf cannot be an ``edge_index``, or rows of nodes, or of edges; and its least and largest value."""
    if not _has_rows(leaf):
        return 1, 1, 1, -np.inf, -np.inf
    values = leaf.detach()
    finite = values[values.isfinite()].double() if values.numel() else values.double()
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (np.inf, -np.inf)
    rows = leaf.shape[0]
    return not _is_ends(leaf), rows != graph.num_nodes, rows not in num_edges, -low, high


def _rows_of(path: str, leaf: Any, agreed: np.ndarray) -> Any:
    not_ends, not_nodes, not_edges = agreed[:3].astype(bool)
    if isinstance(leaf, LocalGraph):
        return Rows(GRAPH, (leaf.meta.num_features,))
    if not_ends and not_nodes and not_edges:
        return leaf
    low, high = (-float(agreed[3]), float(agreed[4])) if np.isfinite(agreed[3:]).all() else (0.0, 1.0)
    kind = ENDS if not not_ends else EDGES if not_nodes or ("edge" in path and not not_edges) else NODES
    has_gradient = leaf.is_floating_point() and (kind == NODES or leaf.requires_grad)
    return Rows(kind, () if kind == ENDS else tuple(leaf.shape[1:]), leaf.dtype, low, high, has_gradient)


class TinyGraph:
    """The graph, and random arguments for a call, with floating-point ones in ``dtype``. offsets: (RANKS + 1,) first position of
    each part. both_ways: whether it is undirected, without parallel edges.
    """

    def __init__(self, call: Call, dtype: torch.dtype = torch.float64, *, both_ways: bool = False) -> None:
        generator = np.random.default_rng(7)
        edges = generator.integers(0, NUM_NODES - 1, (2, NUM_EDGES - 7))
        edges = np.concatenate((edges, edges[:, :5], [[3, 11], [3, 11]]), axis=1)
        if both_ways:
            edges = generator.permutation(np.unique(np.concatenate((edges, edges[::-1]), axis=1), axis=1), axis=1)
        self.edges = edges[:, np.argsort(edges[1], kind="stable")]  # some aggregations ask for edges by destination
        self.offsets = np.array([0, 11, 22, NUM_NODES])
        self.nodes = generator.permutation(NUM_NODES)  # the node at each position
        self.position = np.argsort(self.nodes)
        ends = self.position[self.edges]
        self.order = np.lexsort(ends)  # of the edges in the parts
        self.dtype = dtype
        self.pull = torch.from_numpy(generator.standard_normal(NUM_NODES)).to(dtype)
        leaves, self._tree = pytree.tree_flatten(call.arguments)
        self._leaves: list[tuple[Rows | None, Any]] = [
            (leaf, leaf.draw(generator, dtype, self.edges.shape[1]) if leaf.kind != ENDS else None)
            if isinstance(leaf, Rows)
            else (None, leaf)
            for leaf in leaves
        ]
        self.x = next((value for rows, value in self._leaves if rows is not None and rows.kind in (NODES, GRAPH)), None)
        self.weight = torch.from_numpy(generator.uniform(0.5, 1.5, self.edges.shape[1]))

    def whole(self) -> Arguments:
        """The arguments for one machine, and the numbers of the nodes and edges in the order of their rows."""
        edge_index = torch.from_numpy(self.edges)
        data = Data(x=self.x, edge_index=edge_index, edge_weight=self.weight.to(self.dtype), num_nodes=NUM_NODES)
        return self._arguments(data, torch.arange(NUM_NODES), torch.arange(self.edges.shape[1]))

    def part(self, world: World) -> tuple[LocalGraph, Arguments]:
        """The graph and the arguments of one rank."""
        first, last = self.offsets[world.rank : world.rank + 2].tolist()
        ends = self.position[self.edges[:, self.order]]
        mine = (ends[1] >= first) & (ends[1] < last)
        lengths = np.bincount(ends[1][mine] - first, minlength=last - first)
        begin = int((ends[1] < first).sum())
        nodes, numbers = torch.from_numpy(self.nodes[first:last]), torch.from_numpy(self.order[mine])
        graph = LocalGraph(
            world=world,
            path=Path("the rehearsal's graph"),
            uuid="",
            meta=GraphMeta(
                num_nodes=NUM_NODES,
                num_edges=self.edges.shape[1],
                num_features=0 if self.x is None else self.x[0].numel(),
            ),
            node_offsets=self.offsets,
            features=None if self.x is None else self.x[nodes],
            y=None,
            masks={},
            original_ids=nodes,
            indptr=begin + np.concatenate(([0], np.cumsum(lengths))),
            indices=ends[0][mine],
            edge_weight=self.weight[numbers].float(),
            matches_parts=False,
        )
        return graph, self._arguments(graph, graph.original_ids, numbers)

    def _arguments(self, graph: Any, nodes: torch.Tensor, edges: torch.Tensor) -> Arguments:
        given, leaves = [], []
        for rows, value in self._leaves:
            if rows is None:
                made = _constant(value, self.dtype)
            elif rows.kind in (GRAPH, ENDS):
                made = graph if rows.kind == GRAPH else graph.edge_index
            else:
                made = value[nodes if rows.kind == NODES else edges].clone().requires_grad_(rows.has_gradient)
                if rows.has_gradient:
                    leaves.append((made, rows.kind))
            given.append(made)
        return Arguments(pytree.tree_unflatten(given, self._tree), leaves, nodes, edges, self.pull[nodes])


@dataclass
class Arguments:
    """Arguments by name, those with a gradient and their kinds, the original numbers of the rows, and the pull at each node."""

    named: dict[str, Any]
    with_gradient: list[tuple[torch.Tensor, str]]
    nodes: torch.Tensor
    edges: torch.Tensor
    pull: torch.Tensor

    def give(self, model: torch.nn.Module) -> Any:
        """Call ``model`` with the arguments."""
        bound = inspect.signature(model.forward).bind_partial()
        bound.arguments.update(self.named)
        return model(*bound.args, **bound.kwargs)


def _constant(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu().clone()
    return value.to(dtype) if value.is_floating_point() else value
