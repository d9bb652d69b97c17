"""A rehearsal of a model on a tiny graph, before it runs on a real one: several ranks must give the same results as one.

The ranks are threads, so a refused model leaves no other rank waiting, and it is refused on one rank as well as on many.
"""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import GraphMeta
from hpcgnn.exchange import Messages
from hpcgnn.exchange.messages import MessageConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.whole_graph import among
from hpcgnn.pyg import norms
from hpcgnn.pyg.distribution import distribution_of, is_distributed, on_ranks
from hpcgnn.pyg.given import GRAPH, Call, Rows, expected_call
from hpcgnn.pyg.halo_rows import HaloRows
from hpcgnn.pyg.rows import DROPOUTS, EDGES, ENDS, NODES, DirectedError, called_by, line_of_user, name_of
from hpcgnn.world import World
from hpcgnn.world.thread_world import ThreadWorld, on_threads, one_rank

_DROPOUT_MODULES = torch.nn.modules.dropout._DropoutNd
_OPAQUE = (MessagePassing, *norms.GLOBAL, _DROPOUT_MODULES)  # their inner calls are this package's responsibility


@dataclass
class Recorded:
    """A call of a layer, or of a torch function outside of layers: its result, and its place in the code."""

    name: str
    where: str
    result: Tensor


class PartError(Exception):
    """An error that a model raised, with its place in the code."""


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, HpcgnnError) and not isinstance(error, (ValueError, TypeError))


class Recorder(TorchFunctionMode):
    """Records the calls made in its context. Meanwhile, dropouts do nothing; those of ``model`` do nothing afterwards, too."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[Recorded] = []
        self._inside: list[str] = []
        self._last = "it"
        self._hooks: list[RemovableHandle] = []
        for name, module in model.named_modules():
            if isinstance(module, _OPAQUE):
                self._listen(module, f"{name or 'the model'} ({type(module).__name__})")
        if is_distributed(model):
            distribution_of(model).bridge.drops = False

    def _listen(self, module: torch.nn.Module, described: str) -> None:
        def enter(*_: Any) -> None:
            self._inside.append(described)

        def leave(module: torch.nn.Module, _: Any, result: Any) -> None:
            if len(self._inside) == 1 and isinstance(result, Tensor) and not isinstance(module, _DROPOUT_MODULES):
                self.calls.append(Recorded(described, "", result.detach()))
            self._inside.pop()

        self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def stop(self) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch's documentation of ``__torch_function__``: torch calls it instead of each of its functions."""
        if func in DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        name, is_models = name_of(func), not self._inside and called_by() != "ours"
        if is_models:
            self._last = f"{name} ({line_of_user()})"
        result = func(*args, **(kwargs or {}))
        if is_models:
            for tensor in result if isinstance(result, tuple) else (result,):
                # inside torch.vmap, a tensor is a column of others, and may not be looked at afterwards
                if isinstance(tensor, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    self.calls.append(Recorded(name, line_of_user(), tensor.detach()))
        return result

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, Exception) and not (_is_refusal(error) or isinstance(error, threading.BrokenBarrierError)):
            where = self._inside[0] if self._inside else self._last
            raise PartError(f"{where} raised {type(error).__name__}: {error}") from error


RANKS, NUM_NODES, NUM_EDGES = 3, 26, 127
Of = tuple[str, int | None]
"""Rows of nodes or edges: ``(NODES, None)`` for all, ``(NODES, k)`` for those of type k, and edges likewise."""


def _few_edges(generator: np.random.Generator, *, both_ways: bool) -> np.ndarray:
    edges = generator.integers(0, NUM_NODES - 1, (2, NUM_EDGES - 7))
    edges += edges >= NUM_NODES // 2  # the isolated node is not the last one, by which PyG may find the number of nodes
    edges = np.concatenate((edges, edges[:, :5], [[3, 11], [3, 11]]), axis=1)
    if not both_ways:
        return edges
    return generator.permutation(np.unique(np.concatenate((edges, edges[::-1]), axis=1), axis=1), axis=1)


def _few_of_each_type(generator: np.random.Generator, meta: GraphMeta) -> tuple[GraphMeta, np.ndarray, np.ndarray]:
    """A graph with the types of ``meta``: its counts, its edges (2, E), and their types (E,). Each type has a number of nodes, or
    of edges, of its own, by which the rows of results are known."""
    nodes = tuple(replace(each, count=5 + number) for number, each in enumerate(meta.node_types))
    first, edges, kinds = np.cumsum([0, *(each.count for each in nodes)]), [], []
    for number, each in enumerate(meta.edge_types):
        ends = each.source, each.destination
        drawn = np.stack([generator.integers(0, nodes[end].count, 26 + len(nodes) + number) for end in ends])
        edges.append(np.concatenate((drawn, drawn[:, :5]), axis=1) + first[list(ends), np.newaxis])
        kinds.append(np.full(edges[-1].shape[1], number))
    counts = int(first[-1]), sum(map(len, kinds))
    few = GraphMeta(*counts, num_edge_types=len(kinds), node_types=nodes, edge_types=meta.edge_types)
    return few, np.concatenate(edges, axis=1), np.concatenate(kinds)


class TinyGraph:
    """A tiny graph, whole and in parts, and random arguments for a call, with floating-point ones in ``dtype``.

    It has self-loops, parallel edges and an isolated node, and is directed, or with ``both_ways`` undirected without parallel
    edges. Its parts have their nodes, and therefore in-edges, in another order than the whole graph, as those of real graphs.
    For a call with dictionaries by type, it has the types of ``meta``.
    """

    def __init__(
        self,
        call: Call,
        dtype: torch.dtype = torch.float64,
        *,
        both_ways: bool = False,
        meta: GraphMeta | None = None,
    ) -> None:
        generator = np.random.default_rng(7)
        if call.is_by_type:
            assert meta is not None
            self.meta, edges, kinds = _few_of_each_type(generator, meta)
        else:
            edges = _few_edges(generator, both_ways=both_ways)
            self.meta, kinds = GraphMeta(NUM_NODES, edges.shape[1], 0), np.zeros(edges.shape[1], np.int64)
        order = np.argsort(edges[1], kind="stable")  # some aggregations ask for edges by destination
        self.edges, self.kinds, nodes = edges[:, order], torch.from_numpy(kinds[order]), self.meta.num_nodes
        self.offsets = np.array([0, 11, 22, 26]) * nodes // 26  # (RANKS + 1,) first position of each part
        self.nodes = generator.permutation(nodes)  # the node at each position
        self.position = np.argsort(self.nodes)
        ends = self.position[self.edges]
        self.order = np.lexsort(ends)  # of the edges in the parts
        self.dtype = dtype
        self.pull = torch.from_numpy(generator.standard_normal(nodes)).to(dtype)
        leaves, self._tree = pytree.tree_flatten(call.arguments)
        counts = {of: rows.numel() for of, rows in self._rows(torch.arange(nodes), torch.arange(kinds.size)).items()}
        self._leaves: list[tuple[Any, Any]] = [
            (leaf, _draw(leaf, generator, dtype, counts) if isinstance(leaf, Rows) else leaf) for leaf in leaves
        ]
        self.x = next(
            (value for leaf, value in self._leaves
             if isinstance(leaf, Rows) and leaf.kind in (NODES, GRAPH) and leaf.of_type is None), None
        )  # fmt: skip
        self.weight = torch.from_numpy(generator.uniform(0.5, 1.5, self.edges.shape[1]))

    def whole(self) -> Arguments:
        """The arguments for one machine, and the numbers of the nodes and edges in the order of their rows."""
        edge_index, nodes = torch.from_numpy(self.edges), self.meta.num_nodes
        data = Data(x=self.x, edge_index=edge_index, edge_weight=self.weight.to(self.dtype), num_nodes=nodes)
        first = torch.from_numpy(self.meta.node_type_offsets)
        by_type = [
            edge_index[:, self.kinds == number] - first[[each.source, each.destination], None]
            for number, each in enumerate(self.meta.edge_types)
        ]
        return self._arguments(data, by_type, torch.arange(nodes), torch.arange(self.edges.shape[1]))

    def part(self, world: World) -> tuple[LocalGraph, Arguments]:
        """The graph and the arguments of one rank."""
        first, last = self.offsets[world.rank : world.rank + 2].tolist()
        ends = self.position[self.edges[:, self.order]]
        mine = (ends[1] >= first) & (ends[1] < last)
        lengths = np.bincount(ends[1][mine] - first, minlength=last - first)
        begin = int((ends[1] < first).sum())
        nodes, numbers = torch.from_numpy(self.nodes[first:last]), torch.from_numpy(self.order[mine])
        num_features = 0 if self.x is None else self.x[0].numel()
        graph = LocalGraph(
            world=world,
            path=Path("the rehearsal's graph"),
            uuid="",
            meta=replace(self.meta, num_features=num_features),
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
        graph._of_edges["type"] = self.kinds[numbers]
        by_type = list(graph.edge_index_dict.values()) if self.meta.edge_types else []
        return graph, self._arguments(graph, by_type, graph.original_ids, numbers)

    def _rows(self, nodes: Tensor, edges: Tensor) -> dict[Of, Tensor]:
        """The numbers of the rows that an argument has for these nodes and edges, among all nodes or edges and among those of
        each type."""
        first = self.meta.node_type_offsets.tolist()
        found: dict[Of, Tensor] = {(NODES, None): nodes, (EDGES, None): edges}
        for number in range(len(self.meta.node_types)):
            mine = nodes[(nodes >= first[number]) & (nodes < first[number + 1])]
            found[NODES, number] = mine - first[number]
        for number in range(len(self.meta.edge_types)):
            is_of = self.kinds == number
            found[EDGES, number] = (is_of.cumsum(0) - 1)[edges[is_of[edges]]]
        return found

    def _arguments(self, graph: Any, ends: list[Tensor], nodes: Tensor, edges: Tensor) -> Arguments:
        given, leaves, numbers = [], [], self._rows(nodes, edges)
        for rows, value in self._leaves:
            if not isinstance(rows, Rows):
                made = _constant(value, self.dtype)
            elif rows.kind == GRAPH:
                made = graph
            elif rows.kind == ENDS:
                made = graph.edge_index if rows.of_type is None else ends[rows.of_type]
            else:
                of = rows.kind, rows.of_type
                made = value[numbers[of]].clone().requires_grad_(rows.has_gradient)
                if rows.has_gradient:
                    leaves.append((made, of))
                made = made.movedim(0, rows.axis) if rows.axis else made
            given.append(made)
        axis = min((rows.axis for rows, _ in self._leaves if isinstance(rows, Rows)), default=0)
        first = self.meta.node_type_offsets.tolist()
        pull = {of: self.pull[first[of[1] or 0] + rows] for of, rows in numbers.items() if of[0] == NODES}
        return Arguments(pytree.tree_unflatten(given, self._tree), leaves, numbers, pull, axis)


@dataclass
class Arguments:
    """Arguments by name, those with a gradient and whose rows they have, the original numbers of the rows, the pull at each
    node, and the dimension along which results have rows of nodes (-2 if an argument has them there)."""

    named: dict[str, Any]
    with_gradient: list[tuple[Tensor, Of]]
    rows: dict[Of, Tensor]
    pull: dict[Of, Tensor]
    axis: int

    def give(self, model: torch.nn.Module) -> Any:
        """Call ``model`` with the arguments."""
        bound = inspect.signature(model.forward).bind_partial()
        bound.arguments.update(self.named)
        return model(*bound.args, **bound.kwargs)


def _draw(rows: Rows, generator: np.random.Generator, dtype: torch.dtype, counts: dict[Of, int]) -> Tensor | None:
    """Random rows for the tiny graph, in ``dtype`` in place of other floating-point types. None: an ``edge_index``."""
    if rows.kind == ENDS:
        return None
    shape = (counts[EDGES if rows.kind == EDGES else NODES, rows.of_type], *rows.tail)
    high = rows.high if rows.high > rows.low else rows.low + 1
    if rows.dtype.is_floating_point:
        return torch.from_numpy(generator.uniform(rows.low, high, shape)).to(dtype)
    return torch.from_numpy(generator.integers(int(rows.low), int(rows.high) + 1, shape)).to(rows.dtype)


def _constant(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu().clone()
    return value.to(dtype) if value.is_floating_point() else value


_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4}
_PASSES = 2  # edges that come again are aggregated by a plan
_LOG = logging.getLogger("hpcgnn")
_NOT_REHEARSED = "%s is distributed without having been tried on a tiny graph, so it may be wrong on several ranks: %s"


@dataclass
class Outcome:
    """The outcome of running a model: its results and whose rows they have, its gradients by name, those among them that have
    rows of arguments, its recorded calls, and the numbers of the rows."""

    results: list[tuple[Of, Tensor]]
    gradients: dict[str, Tensor]
    of_rows: dict[str, Of]
    calls: list[Recorded]
    rows: dict[Of, Tensor]


def rehearse(model: torch.nn.Module, graph: LocalGraph, call: Call | None = None) -> int | None:
    """Raise HpcgnnError if ``model`` does not give the same results on several ranks as on one. Returns the ``shape`` of the call
    that was rehearsed, or None. Collective where the model needs both directions of each edge, which the tiny graph has if
    ``graph`` does.

    call: the arguments of a real call. None stands for :func:`expected_call`; a model that takes others is rehearsed in its first
    real call. A model that does not run in float64 is rehearsed in float32; if it does not run at all, a warning says so.
    """
    expected = call is None
    call = call or expected_call(model.forward, graph)
    if call is None:
        return None
    for dtype in _TOLERANCES:
        try:
            _rehearse_both_modes(model, graph, call, dtype)
            break
        except _DoesNotRun as error:
            if dtype is torch.float32 and expected:
                return None  # the arguments of the first real call may be others
            if dtype is torch.float32 and graph.world.rank == 0:
                _LOG.warning(_NOT_REHEARSED, type(model).__name__, error)
    return call.shape()


def _rehearse_both_modes(model: torch.nn.Module, graph: LocalGraph, call: Call, dtype: torch.dtype) -> None:
    for training in (True, False):
        plain = copy.deepcopy(model).cpu().to(dtype).train(training)
        try:
            _rehearse(plain, TinyGraph(call, dtype, meta=graph.meta))
        except DirectedError:
            if call.is_by_type:
                raise
            halo = HaloRows(graph)
            halo.know_ids()
            if not halo.is_undirected():
                raise
            _rehearse(plain, TinyGraph(call, dtype, both_ways=True))


_ALONE = threading.Lock()  # ranks that are threads share torch's generator, whose state tells whether a model draws


class _DoesNotRun(Exception):
    """The model raised an error on the tiny graph on one machine."""


def _rehearse(plain: torch.nn.Module, tiny: TinyGraph) -> None:
    with _ALONE, torch.random.fork_rng(devices=[]):
        try:
            with among(one_rank()):
                wanted, after = _run(copy.deepcopy(plain), tiny.whole()), torch.get_rng_state()
                again = _run(copy.deepcopy(plain), tiny.whole())
        except Exception as error:  # any error of the user's model, such as wrong arguments of a kernel
            if _is_refusal(error):
                raise
            raise _DoesNotRun(error) from error
        # models that seed the generator themselves leave it in the same state
        results = zip(wanted[-1].results, again[-1].results, strict=True)
        if not (
            torch.equal(after, torch.get_rng_state()) and all(_same(one, other) for (_, one), (_, other) in results)
        ):
            return  # the model draws random numbers of its own, so there is nothing to compare with
        of = [each for each, _ in wanted[-1].results]
        for whole, *parts in zip(wanted, *_on_ranks(type(plain).__name__, plain, tiny, of), strict=True):
            _compare(type(plain).__name__, whole, parts)


# -- running -----------------------------------------------------------------------------------------------------------


def _on_ranks(name: str, plain: torch.nn.Module, tiny: TinyGraph, results: list[Of]) -> list[list[Outcome]]:
    def program(world: ThreadWorld) -> list[Outcome]:
        graph, arguments = tiny.part(world)
        messages = Messages(world, MessageConfig(collective="alltoallv"))
        return _run(on_ranks(copy.deepcopy(plain), graph, messages, backend="reference"), arguments, results)

    try:
        return on_threads(RANKS, program)
    except PartError as error:
        raise HpcgnnError(
            f"{name} cannot be distributed: on a part of a graph {error} (outside of layers, a rank has the rows of its own "
            "nodes only, not those of their in-neighbours)"
        ) from error


def _run(model: torch.nn.Module, arguments: Arguments, whose: list[Of] | None = None) -> list[Outcome]:
    """Run some passes without dropout. Backward starts from the sum of the results' rows weighted by the pull at each node.
    whose: the nodes that the results have rows of; None: those of which there are as many."""
    outcomes, pull = [], arguments.pull
    for _ in range(_PASSES):
        recorder = Recorder(model)
        with recorder:
            result = arguments.give(model)
        results = _with_rows(model, result, arguments, whose)
        model.zero_grad()
        for leaf, _ in arguments.with_gradient:
            leaf.grad = None
        pulled = [(rows.flatten(1).sum(1) if rows.dim() > 1 else rows).mul(pull[of]).sum() for of, rows in results]
        if (total := torch.stack(pulled).sum()).requires_grad:
            total.backward()
        gradients, of_rows = {name: _gradient(parameter) for name, parameter in model.named_parameters()}, {}
        for number, (leaf, of) in enumerate(arguments.with_gradient, start=1):
            name = f"argument {number} with rows of {of[0]}"
            gradients[name], of_rows[name] = _gradient(leaf), of
        detached = [(of, rows.detach()) for of, rows in results]
        outcomes.append(Outcome(detached, gradients, of_rows, recorder.calls, arguments.rows))
        recorder.stop()
    return outcomes


def _with_rows(
    model: torch.nn.Module, result: Any, arguments: Arguments, whose: list[Of] | None
) -> list[tuple[Of, Tensor]]:
    """The results of a model, and whose rows they have: one tensor, or for a call by type any tree of tensors."""
    sizes = {rows.numel(): of for of, rows in arguments.rows.items() if of[0] == NODES}
    found = [each for each in pytree.tree_leaves(result) if each is not None] if len(sizes) > 1 else [result]
    if arguments.axis:
        found = [each.movedim(-2, 0) if isinstance(each, Tensor) and each.dim() > 2 else each for each in found]
    if found and all(isinstance(each, Tensor) and each.dim() for each in found):
        whose = whose or [sizes[len(each)] for each in found if len(each) in sizes]
        if [arguments.pull[of].shape for of in whose] == [each.shape[:1] for each in found]:
            return list(zip(whose, found, strict=True))
    by_type = ", or tensors with a row for each node of a type" if len(sizes) > 1 else ""
    raise HpcgnnError(
        f"{type(model).__name__} cannot be distributed: its result is not a tensor with a row for each node{by_type}, of which "
        "each rank would have its own"
    )


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.detach().clone()


# -- comparing ---------------------------------------------------------------------------------------------------------


def _compare(model: str, wanted: Outcome, found: list[Outcome]) -> None:
    """Raise HpcgnnError, naming the layer or function responsible, if the ranks' results differ from those of one machine."""
    rows = {of: torch.cat([outcome.rows[of] for outcome in found]) for of in wanted.rows}
    for (of, whole), *parts in zip(wanted.results, *(outcome.results for outcome in found), strict=True):
        if not _same(whole[rows[of]], torch.cat([part for _, part in parts])):
            raise HpcgnnError(f"{model} cannot be distributed: {_blamed(wanted, found, rows)}")
    largest = max((float(value.abs().max()) for value in wanted.gradients.values() if value.numel()), default=0.0)
    for name, value in wanted.gradients.items():
        shares, whose = [outcome.gradients[name] for outcome in found], wanted.of_rows.get(name)
        total = torch.stack(shares).sum(0) if whose is None else torch.cat(shares)
        if not _same(value if whose is None else value[rows[whose]], total, largest):
            raise HpcgnnError(
                f"{model} cannot be distributed: on a part of a graph its results are right, but the gradient of {name} is not"
            )


def _blamed(wanted: Outcome, found: list[Outcome], rows: dict[Of, Tensor]) -> str:
    for call, *theirs in zip(wanted.calls, *(outcome.calls for outcome in found), strict=False):
        if any(call.name != other.name for other in theirs):
            break
        if not _agree(call.result, [other.result for other in theirs], rows):
            where = f" ({call.where})" if call.where else ""
            return (
                f"{call.name}{where} gives other values on a part of a graph than on the whole graph; it may only use a node's "
                "own row and the rows of its in-neighbours, in any order"
            )
    return "its result on a part of a graph differs from that on the whole graph, because of an operation that was not found"


def _agree(whole: Tensor, parts: list[Tensor], rows: dict[Of, Tensor]) -> bool:
    """Return whether the parts together have the whole's rows, or, for a result of the whole graph, whether each equals it."""
    if whole.dim() and sum(part.shape[0] if part.dim() else 0 for part in parts) == whole.shape[0] > 1:
        of = {rows[each].numel(): each for each in rows}.get(whole.shape[0])
        if any(part.shape[1:] != whole.shape[1:] for part in parts):
            return False  # it has a column for each node, too
        if of is not None and of[0] == EDGES and not whole.is_floating_point():
            return True  # ids, which differ between a graph and its parts
        return of is None or _same(whole[rows[of]], torch.cat(parts))
    if all(part.shape == whole.shape for part in parts):
        return all(_same(whole, part) for part in parts)
    return True  # the result belongs to other things than nodes or edges


def _same(wanted: Tensor, found: Tensor, largest: float | None = None) -> bool:
    """Return whether two tensors are equal up to rounding, relative to ``largest``, or to the largest value of ``wanted``."""
    if wanted.shape != found.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, found)
    scale = float(wanted.abs().max()) if largest is None and wanted.numel() else largest or 0.0
    return torch.allclose(wanted, found, rtol=0, atol=_TOLERANCES[wanted.dtype] * max(scale, 1e-12), equal_nan=True)
