"""The objects that the layers of a distributed model share: the halo, and an aggregator for each set of edges.

Shapes: n owned nodes, h halo nodes, e edges that end at owned nodes. Ids in an ``edge_index`` (2, e) are those of
``graph.edge_index``: 0..n-1 are owned nodes, n..n+h-1 are halo nodes. In an ``edge_index`` of ``graph.edge_index_dict``, the n
and h nodes of the sources' type count instead, and the owned nodes of the destinations' type.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, spmm
from hpcgnn.kernels.again import is_again, run_again
from hpcgnn.kernels.keyed import derive_key
from hpcgnn.kernels.rows import check_index
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.aggregators import aggregator_of_plan, make_aggregator
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.halo import edge_matrix, make_halo, make_halo_of_type
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import DropoutKeys, KeyedDropout
from hpcgnn.nn.whole_graph import among
from hpcgnn.pyg.halo_rows import HaloRows
from hpcgnn.pyg.row_mode import RowMode
from hpcgnn.pyg.rows import ENDS, is_checkpointed, place

T = TypeVar("T")
_MOST_KEPT = 16


class Seen:
    """An ``edge_index`` and its weights. They are kept alive, so that no other tensor can get their identity."""

    def __init__(self, edge_index: Tensor, weight: Tensor | None) -> None:
        self.edge_index, self.weight, self.versions = edge_index, weight, _versions(edge_index, weight)

    def is_of(self, edge_index: Tensor, weight: Tensor | None) -> bool:
        """Return whether the given tensors are these very objects, unchanged."""
        same = self.edge_index is edge_index and self.weight is weight
        return same and self.versions == _versions(edge_index, weight)


class Kept(Generic[T]):
    """Objects made from an ``edge_index`` and its weights, by these tensors themselves and a tag. The oldest of ``most`` go."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._entries: list[tuple[Seen, Hashable, T]] = []
        self._most = most

    def find(self, edge_index: Tensor, weight: Tensor | None, tag: Hashable = None) -> T | None:
        """The object that was stored for these tensors, or None."""
        return next((made for seen, of, made in self._entries if of == tag and seen.is_of(edge_index, weight)), None)

    def keep(self, edge_index: Tensor, weight: Tensor | None, made: T, tag: Hashable = None) -> None:
        """Store ``made`` for these tensors."""
        self._entries = [*self._entries[1 - self._most :], (Seen(edge_index, weight), tag, made)]


def _versions(*tensors: Tensor | None) -> list[int]:
    """The numbers of changes of tensors; torch counts none of inference tensors."""
    return [-1 if each is None or each.is_inference() else each._version for each in tensors]


# Ranks may be threads. get_state holds the generator's own lock while it makes a Python object, and a garbage collection there
# may let another thread run, which would wait for that lock without ever giving Python back.
_GENERATORS = threading.Lock()


@contextmanager
def draws_of_rank(graph: LocalGraph) -> Iterator[None]:
    """In this context, several ranks draw different numbers for their rows, also after ``torch.manual_seed`` with the same seed:
    torch's generators are seeded from their next number and from the rank, and go on as if they had drawn only that number.
    """
    if graph.world.size == 1:
        yield
        return
    number = int(torch.randint(2**62, (), dtype=torch.int64))
    with seeded(graph, derive_key(number, graph.world.rank)):
        yield


def _generators(graph: LocalGraph) -> list[torch.Generator]:
    """Torch's global generators for the devices of ``graph``."""
    torch_device = graph.device.torch_device
    of_gpu = [torch.cuda.default_generators[torch_device.index or 0]] if torch_device.type == "cuda" else []
    return [torch.default_generator, *of_gpu]


def _states(generators: list[torch.Generator]) -> list[Tensor]:
    with _GENERATORS:
        return [generator.get_state() for generator in generators]


def _restore(generators: list[torch.Generator], states: list[Tensor]) -> None:
    with _GENERATORS:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def seeded(graph: LocalGraph, key: int) -> Iterator[None]:
    """In this context, torch's global generators begin from ``key``, a 64-bit number."""
    generators = _generators(graph)
    before = _states(generators)
    with _GENERATORS:
        for generator in generators:
            generator.manual_seed(key >> 1)
    try:
        yield
    finally:
        _restore(generators, before)


Operator = Callable[[Tensor], Tensor]
_HALO = "halo"
_NARROW = (torch.bfloat16, torch.float16)


class Bridge:
    """The exchanges of one graph for the layers of one model.

    Sets of edges are distinguished by the tensors that hold them, not by their values: all ranks, including those without
    edges, must decide alike whether a plan is made.
    """

    def __init__(self, graph: LocalGraph, messages: Messages, strategy: str, backend: str) -> None:
        self.int8: Int8 | None = None  # used instead of float32 where it is faster
        self.float32_layers: set[int] = set()  # numbers of the layers that always use float32
        self.graph, self.messages, self.strategy, self.backend = graph, messages, strategy, backend
        self.activations = Activations()
        self.exact = HaloRows(graph)  # the exchange of rows that are never rounded
        self.mode = RowMode(self.exact, self._drop, self._common_draws)  # follows rows through each call
        self.exchanges: dict[tuple[int, str], Aggregator] = {}
        self._halo: Aggregator | None = None
        self._halo_of_type: dict[int, Aggregator] = {}
        # Layers have edges of each type, and norms of them.
        self.most_kept = max(_MOST_KEPT, 2 * graph.meta.num_edge_types)
        # The pass's rows by type, for the types of edges that read them.
        self._extended: Kept[Tensor] = Kept(self.most_kept)
        self._num_plans = 0
        self.drops = True  # whether F.dropout does something
        self._pass = -1, 0  # epoch, and number of the pass in it
        self.in_pass = False  # whether a call of the model is under way
        self._num_common = 0  # uses of common draws in the pass
        self._draws = {True: 0, False: 0}  # masks drawn in the pass, in layers and outside of them
        self._aggregators: Kept[tuple[str, Aggregator]] = Kept()
        self._structures: Kept[tuple[Csr, Tensor]] = Kept(self.most_kept)
        self._kinds: Kept[str] = Kept()
        self._before: dict[Hashable, Seen] = {}  # the tensors that were used last at each place in the previous pass
        self._now: dict[Hashable, Seen] = {}  # and in this one

    @property
    def halo(self) -> Aggregator:
        """The exchange of the halo's rows. The first access is collective: copies of a model may be made on one rank."""
        if self._halo is None:  # not a cached_property, whose lock would keep ranks that are threads from meeting
            with torch.inference_mode(False):
                self._halo = make_halo(self.graph, messages=self.messages, backend=self.backend)
        return self._halo

    def _halo_of(self, types: tuple[int, ...]) -> tuple[str, Aggregator]:
        """The exchange of the halo nodes of the first of ``types``, and its name. Collective at first."""
        if not types:
            return _HALO, self.halo
        kind = types[0]
        if kind not in self._halo_of_type:
            asked = self.exact.of(types).asked()
            with torch.inference_mode(False):
                self._halo_of_type[kind] = make_halo_of_type(
                    self.graph, kind, asked, messages=self.messages, backend=self.backend
                )
        return f"{_HALO} of type {kind}", self._halo_of_type[kind]

    def begin_pass(self) -> None:
        """Begin a call of the model: tensors of the previous call may come again. The first one is collective."""
        self.exact.know_ids()  # here, because layers leave out their dropout on ranks without edges
        self._before, self._now = self._now, {}
        self.mode.forget()
        self.mode.mark(self.graph.edge_index, ENDS, 1, of_graph=True)
        epoch = self.messages.current_pass.epoch
        epoch_before, number = self._pass
        self._pass = epoch, number + 1 if epoch == epoch_before else 0
        self._draws, self._num_common = {True: 0, False: 0}, 0

    def end_pass(self) -> None:
        """End a call of the model."""
        self.in_pass = False
        self._extended = Kept(self.most_kept)

    def _drop(self, x: Tensor, rate: float, ids: Tensor | None, *, in_layer: bool) -> Tensor:
        """Replaces ``F.dropout``; ids and in_layer: see :class:`RowMode`."""
        if not self.drops:
            return x
        epoch, number = self._pass
        draw = self._draws[in_layer]  # counted apart: layers leave out their dropout on ranks without edges
        self._draws[in_layer] += 1
        # A checkpoint repeats this in the backward pass, with the states of torch's generators that there were.
        if ids is None or rate >= 1 or is_checkpointed():
            return torch.nn.functional.dropout(x, rate)
        keys = DropoutKeys(ids, self.messages.current_pass.seed, epoch)
        drop = KeyedDropout(keys, derive_key(number, in_layer, draw), rate, self.backend)
        return drop(widened(x).reshape(x.shape[0], math.prod(x.shape[1:]))).view(x.shape).to(x.dtype)

    def _common_draws(self) -> AbstractContextManager[None]:
        """A context in which all ranks draw the same random numbers, others in each pass and at each use."""
        self._num_common += 1
        return seeded(self.graph, derive_key(self.messages.current_pass.seed, *self._pass, self._num_common))

    def run(self, layer: torch.nn.Module, messages: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """``messages(*given, **named)``, which computes the messages of a layer. With ``activations="recompute"``, backward runs
        it again, so that no row of an edge is kept. Collective."""
        repeats = self.activations.repeats and torch.is_grad_enabled()
        # Of rows by type, one exchange serves several layers.
        if not repeats or self.mode.knows_types or is_checkpointed():
            return messages(*given, **named)
        draws, kind = ({**self._draws}, self._num_common), self.graph.device.torch_device.type
        states = _states(_generators(self.graph))
        casts = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def part() -> Any:
            with self._as_then(draws, states, casts) if is_again() else nullcontext():
                return messages(*given, **named)

        return run_again(part, state=lambda: (self.messages.current_pass, self._pass, layer.training))

    @contextmanager
    def _as_then(
        self, draws: tuple[dict[bool, int], int], states: list[Tensor], casts: AbstractContextManager[Any]
    ) -> Iterator[None]:
        """In this context, a layer runs as within a call of the model, with the draws that it had then."""
        generators, now = _generators(self.graph), (self._draws, self._num_common)
        before = _states(generators)
        _restore(generators, states)
        self._draws, self._num_common = {**draws[0]}, draws[1]
        try:
            with among(self.graph.world), self.mode, casts:
                yield
        finally:
            self._draws, self._num_common = now
            _restore(generators, before)

    # -- methods for layers -------------------------------------------------------------------------------------------

    def types_of(self, edge_index: Tensor) -> tuple[int, ...]:
        """The types of the sources and destinations of edges from a dictionary; empty for edges of all types."""
        role = self.mode.role(edge_index)
        if role is None and self.mode.knows_types:
            raise HpcgnnError(
                f"a layer {place()} was given edges of which no type is known: give the model graph.edge_index_dict as an "
                "argument, and let its layers take the edges of it",
                agreed=True,
            )
        return () if role is None else role.types

    def extended(self, layer: int, x: Tensor, node_dim: int = 0, types: tuple[int, ...] = ()) -> Tensor:
        """``x`` with the rows of the halo nodes appended along ``node_dim``: those of the first of ``types``, if any are given.
        Rows of a type travel once in a pass for all layers that read the same tensor. Collective.
        """
        if not types or is_checkpointed():
            return self._exchanged(layer, x, node_dim, types)
        how = node_dim, types[0], torch.is_grad_enabled()
        wide = self._extended.find(x, None, how)
        if wide is None:
            wide = self._exchanged(layer, x, node_dim, types)
            self._extended.keep(x, None, wide, how)
        return wide

    def _exchanged(self, layer: int, x: Tensor, node_dim: int, types: tuple[int, ...]) -> Tensor:
        rows = x.movedim(node_dim, 0)
        flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
        if x.is_floating_point():
            wide = self._of_layer(layer, *self._halo_of(types))(widened(flat)).to(x.dtype)
        else:
            wide = self.exact.of(types).extended(flat)
        return wide.view(wide.shape[0], *rows.shape[1:]).movedim(0, node_dim)

    def operator(
        self, layer: int, edge_index: Tensor, weight: Tensor | None, dtype: torch.dtype, *, mean: bool = False
    ) -> Operator:
        """The aggregator that sums or averages over ``edge_index`` with weights (e,): (n, F) of ``dtype`` to (n, F). Collective.

        Edges that stay the same get a plan: those of the graph, those that :mod:`hpcgnn.pyg.convolutions` made from them, and
        any that were used in the previous pass, too. Other edges, those with trained weights, and edges of one type are
        aggregated over the halo.
        """
        if self.types_of(edge_index):
            return lambda x: self._over_halo(layer, edge_index, weight, x, mean=mean)
        planned = self._aggregators.find(edge_index, weight, (mean, dtype))
        if planned is None and self._stays(layer, edge_index, weight):
            self._num_plans += 1
            planned = f"plan {self._num_plans}", self._planned(edge_index, weight, dtype, mean=mean)
            self._aggregators.keep(edge_index, weight, planned, (mean, dtype))
        if planned is None:
            return lambda x: self._over_halo(layer, edge_index, weight, x, mean=mean)
        return self._of_layer(layer, *planned)

    def note_kind(self, edge_index: Tensor, weight: Tensor, kind: str) -> None:
        """Note that these edges stay the same. kind: that of :func:`make_aggregator` for exactly these edges, or ``fixed``."""
        self._kinds.keep(edge_index, weight, kind)

    # -- choice of the plan -------------------------------------------------------------------------------------------

    def is_graphs(self, edge_index: Tensor, weight: Tensor | None) -> bool:
        """Return whether these are the graph's own edges, of all types or of one, without weights."""
        own = edge_index is self.graph.edge_index
        if self.mode.knows_types:
            own = own or any(edge_index is each for each in self.graph.edge_index_dict.values())
        return own and weight is None

    def _stays(self, layer: int, edge_index: Tensor, weight: Tensor | None) -> bool:
        if weight is not None and weight.requires_grad:
            return False
        is_known = self._kinds.find(edge_index, weight) is not None or self.is_graphs(edge_index, weight)
        return is_known or self.comes_again(layer, edge_index, weight)

    def comes_again(self, place: Hashable, edge_index: Tensor, weight: Tensor | None) -> bool:
        """Return whether these tensors were used last at this ``place`` in the previous pass."""
        self._now[place] = Seen(edge_index, weight)
        return place in self._before and self._before[place].is_of(edge_index, weight)

    def _planned(self, edge_index: Tensor, weight: Tensor | None, dtype: torch.dtype, *, mean: bool) -> Aggregator:
        how: dict[str, Any] = {"messages": self.messages, "backend": self.backend}
        kind = self._kinds.find(edge_index, weight)
        if kind is None and self.is_graphs(edge_index, weight):
            kind = "mean" if mean else "sum"
        if kind not in (None, "fixed") and (kind == "mean" or not mean):
            unweighted = replace(self.graph, edge_weight=None)
            return make_aggregator(unweighted, kind, self.strategy, dtype=dtype, **how)
        graph = self._with_edges(edge_index, weight)
        plan = graph.plan(self.strategy, weighted=weight is not None)
        left = 1 / torch.from_numpy(graph.indptr).diff().clamp(min=1).to(dtype)[:, None] if mean else None
        return aggregator_of_plan(self.graph, plan, left, **how)

    def _with_edges(self, edge_index: Tensor, weight: Tensor | None) -> LocalGraph:
        """The graph with other edges, in the file's order of nodes."""
        graph = self.graph
        nodes = torch.arange(graph.num_nodes) if graph.order.nodes is None else graph.order.nodes
        positions = torch.cat((nodes + graph.first, torch.from_numpy(graph.halo_positions)))
        check_index(edge_index[0], positions.numel())
        check_index(edge_index[1], nodes.numel())
        edge_index = edge_index.cpu()
        source, destination = index_array(positions[edge_index[0]]), index_array(nodes[edge_index[1]])
        order = np.lexsort((source, destination))
        indptr = np.concatenate(([0], np.cumsum(np.bincount(destination, minlength=graph.num_nodes))))
        values = None if weight is None else weight.detach().cpu()[torch.from_numpy(order)]
        return replace(graph, indptr=indptr, indices=source[order], edge_weight=values, matches_parts=False)

    # -- aggregation over the halo ------------------------------------------------------------------------------------

    def _over_halo(self, layer: int, edge_index: Tensor, weight: Tensor | None, x: Tensor, *, mean: bool) -> Tensor:
        found, types = self._structures.find(edge_index, None), self.types_of(edge_index)
        if found is None:
            sources, destinations = self.exact.of_ends(types)
            found = edge_matrix(edge_index, (destinations.num_owned, sources.num_extended), check=True)
            self._structures.keep(edge_index, None, found)
        csr, order = found  # (n, n + h), and the number of the edge of each entry
        z = spmm(
            csr,
            self.extended(layer, x, 0, types),
            None if weight is None else weight[order],
            backend=self.backend,
        )
        return z / csr.row_lengths().clamp(min=1).to(z.dtype)[:, None] if mean else z

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _of_layer(self, layer: int, name: str, aggregator: Aggregator) -> Aggregator:
        """The aggregator for one layer, with messages of its own. Layers are numbered in the order of their first exchanges."""
        key = layer, name
        if key not in self.exchanges:
            self.exchanges[key] = aggregator.for_layer(len(self.exchanges))
        if not name.startswith(_HALO):  # computations with halo rows are done by the layer's own code
            int8 = None if layer in self.float32_layers else self.int8
            self.exchanges[key].use_compute(FLOAT32 if int8 is None else int8)
        return self.exchanges[key]


def widened(x: Tensor) -> Tensor:
    """``x`` in a type in which rows travel and are added: ``torch.autocast`` gives layers rows of 16 bits."""
    return x.float() if x.dtype in _NARROW else x
