"""A rehearsal of a model on a tiny graph, before it runs on a real one: several ranks must give the same results as one.

The ranks are threads, so a refused model leaves no other rank waiting, and it is refused on one rank as well as on many.
Outputs and gradients must agree in float64. If they do not, the message names the first layer, or torch function outside of
layers, whose results differ.
"""

from __future__ import annotations

import copy
import inspect
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm import Messages
from hpcgnn.comm.messages import MessageConfig
from hpcgnn.comm.thread_world import ThreadWorld, on_threads
from hpcgnn.data.graph_file import GraphMeta
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.nn.pyg.distribution import on_ranks
from hpcgnn.nn.pyg.recorder import Call, PartError, Recorder

RANKS, NODES, EDGES = 3, 26, 120
_TOLERANCE = 1e-7
_PASSES = 2  # edges that come again are aggregated by a plan
_LOG = logging.getLogger("hpcgnn")
_NOT_REHEARSED = "%s is distributed without having been tried on a tiny graph, so it may be wrong on several ranks: %s"


@dataclass
class Outcome:
    """The outcome of running a model: its result, its gradients by name, and its recorded calls."""

    result: torch.Tensor
    gradients: dict[str, torch.Tensor]
    calls: list[Call]


def rehearse(model: torch.nn.Module, graph: LocalGraph) -> None:
    """Raise HpcgnnError if ``model`` does not give the same results on several ranks as on one. Not collective, but the same on
    all ranks.

    The model is called as ``model(x, edge_index)``, whatever the names of its two arguments, and with ``edge_weight`` if it
    takes that and the graph has weights. If it needs more arguments, or does not run on a tiny graph, a warning says so
    instead.
    """
    name, arguments = type(model).__name__, _arguments(model, graph)
    if arguments is None:
        _warn(graph, name, "it asks for other arguments than x, edge_index and edge_weight")
        return
    with torch.random.fork_rng(devices=[]):
        for training in (True, False):
            plain = copy.deepcopy(model).cpu().double().train(training)
            try:
                wanted, again = (
                    _run(copy.deepcopy(plain), arguments, arguments.whole(), arguments.pull) for _ in range(2)
                )
            except Exception as error:  # any error of the user's model, such as wrong arguments of a kernel
                if isinstance(error, HpcgnnError) and not isinstance(error, (ValueError, TypeError)):
                    raise
                _warn(graph, name, error)
                return
            if not _same(wanted[-1].result, again[-1].result):
                continue  # the model draws random numbers of its own, so there is nothing to compare with
            for whole, *parts in zip(wanted, *_on_ranks(name, plain, arguments), strict=True):
                _compare(name, whole, parts)


def _warn(graph: LocalGraph, name: str, reason: object) -> None:
    if graph.world.rank == 0:
        _LOG.warning(_NOT_REHEARSED, name, reason)


class Arguments:
    """Arguments for a tiny graph in :data:`RANKS` parts: directed, with self-loops, parallel edges and an isolated node."""

    def __init__(self, width: int, *, weighted: bool, names: tuple[str, str] = ("x", "edge_index")) -> None:
        self.names = names
        generator = np.random.default_rng(7)
        edges = generator.integers(0, NODES - 1, (2, EDGES))
        edges = np.concatenate((edges, edges[:, :5], [[3, 11], [3, 11]]), axis=1)
        self.edges = edges[:, np.lexsort(edges)]
        self.x = torch.from_numpy(generator.standard_normal((NODES, width)))
        self.weight = torch.from_numpy(generator.random(self.edges.shape[1]) + 0.5) if weighted else None
        self.pull = torch.from_numpy(generator.standard_normal(NODES))
        self.offsets = np.array([0, 11, 22, NODES])

    def whole(self) -> dict[str, torch.Tensor]:
        """The arguments for one machine."""
        return _named(self.x, torch.from_numpy(self.edges), self.weight)

    def call(self, model: torch.nn.Module, named: dict[str, torch.Tensor]) -> object:
        """The outcome of ``model`` for the arguments of :meth:`whole`, or of a part."""
        mine, theirs = ("x", "edge_index"), self.names
        return model(**{theirs[mine.index(name)] if name in mine else name: value for name, value in named.items()})

    def part(self, world: ThreadWorld) -> tuple[LocalGraph, dict[str, torch.Tensor], torch.Tensor]:
        """The arguments for one rank: its graph, the tensors, and its rows of ``pull``."""
        first, last = self.offsets[world.rank : world.rank + 2].tolist()
        mine = (self.edges[1] >= first) & (self.edges[1] < last)
        lengths = np.bincount(self.edges[1][mine] - first, minlength=last - first)
        graph = LocalGraph(
            world=world,
            path=Path("the rehearsal's graph"),
            uuid="",
            meta=GraphMeta(num_nodes=NODES, num_edges=self.edges.shape[1], num_features=self.x.shape[1]),
            node_offsets=self.offsets,
            features=self.x[first:last],
            y=None,
            masks={},
            original_ids=torch.arange(first, last),
            indptr=np.concatenate(([0], np.cumsum(lengths))),
            indices=self.edges[0][mine],
            edge_weight=None,
            matches_parts=False,
        )
        weight = None if self.weight is None else self.weight[torch.from_numpy(mine)]
        return graph, _named(self.x[first:last], graph.edge_index, weight), self.pull[first:last]


def _named(x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> dict[str, torch.Tensor]:
    named = {"x": x.clone().requires_grad_(), "edge_index": edge_index}
    return named if weight is None else named | {"edge_weight": weight}


def _arguments(model: torch.nn.Module, graph: LocalGraph) -> Arguments | None:
    parameters = inspect.signature(model.forward).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind not in variadic]
    names = ("x", "edge_index")
    if not {*names} <= parameters.keys():
        if len(needed) != 2 or list(parameters)[:2] != needed:
            return None
        names = (needed[0], needed[1])  # whatever the names are
    if not {*needed} <= {*names, "edge_weight"}:
        return None
    weighted = "edge_weight" in needed or ("edge_weight" in parameters and graph.edge_weight is not None)
    return Arguments(graph.meta.num_features, weighted=weighted, names=names)


# -- running -----------------------------------------------------------------------------------------------------------


def _on_ranks(name: str, plain: torch.nn.Module, arguments: Arguments) -> list[list[Outcome]]:
    def program(world: ThreadWorld) -> list[Outcome]:
        graph, named, pull = arguments.part(world)
        messages = Messages(world, MessageConfig(collective="alltoallv"))
        return _run(on_ranks(copy.deepcopy(plain), graph, messages, backend="reference"), arguments, named, pull)

    try:
        return on_threads(RANKS, program)
    except PartError as error:
        raise HpcgnnError(
            f"{name} cannot be distributed: on a part of a graph {error} (outside of layers, a rank has the rows of its own "
            "nodes only, not those of their in-neighbours)"
        ) from error


def _run(
    model: torch.nn.Module, arguments: Arguments, named: dict[str, torch.Tensor], pull: torch.Tensor
) -> list[Outcome]:
    """Run some passes without dropout. Backward starts from the sum of the result's rows weighted by ``pull`` (n,)."""
    outcomes = []
    for _ in range(_PASSES):
        recorder = Recorder(model)
        with recorder:
            result = arguments.call(model, named)
        if not isinstance(result, torch.Tensor) or result.shape[:1] != pull.shape:
            raise HpcgnnError(
                f"{type(model).__name__} cannot be distributed: its result is not a tensor with a row for each node, of which "
                "each rank would have its own"
            )
        model.zero_grad()
        named["x"].grad = None
        (result.flatten(1).sum(1) if result.dim() > 1 else result).mul(pull).sum().backward()
        gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
        outcomes.append(Outcome(result.detach(), gradients | {"x": _gradient(named["x"])}, recorder.calls))
        recorder.stop()
    return outcomes


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.detach().clone()


# -- comparing ---------------------------------------------------------------------------------------------------------


def _compare(model: str, wanted: Outcome, found: list[Outcome]) -> None:
    """Raise HpcgnnError, naming the layer or function responsible, if the ranks' results differ from those of one machine."""
    if not _same(wanted.result, torch.cat([outcome.result for outcome in found])):
        raise HpcgnnError(f"{model} cannot be distributed: {_blamed(wanted, found)}")
    largest = max(float(value.abs().max()) for value in wanted.gradients.values() if value.numel())
    for name, value in wanted.gradients.items():
        shares = [outcome.gradients[name] for outcome in found]
        total = torch.cat(shares) if name == "x" else torch.stack(shares).sum(0)
        if not _same(value, total, largest):
            raise HpcgnnError(
                f"{model} cannot be distributed: on a part of a graph its results are right, but the gradient of {name} is not"
            )


def _blamed(wanted: Outcome, found: list[Outcome]) -> str:
    for call, *theirs in zip(wanted.calls, *(outcome.calls for outcome in found), strict=False):
        if any(call.name != other.name for other in theirs):
            break
        if not _agree(call.result, [other.result for other in theirs]):
            where = f" ({call.where})" if call.where else ""
            return (
                f"{call.name}{where} gives other values on a part of a graph than on the whole graph; it may only use a node's "
                "own row and the rows of its in-neighbours"
            )
    return "its result on a part of a graph differs from that on the whole graph, because of an operation that was not found"


def _agree(whole: torch.Tensor, parts: list[torch.Tensor]) -> bool:
    """Return whether the concatenated parts equal the whole, or, for a result of the whole graph, whether each part equals it."""
    if whole.dim() and sum(part.shape[0] if part.dim() else 0 for part in parts) == whole.shape[0] > 1:
        return _same(whole, torch.cat(parts))
    if all(part.shape == whole.shape for part in parts):
        return all(_same(whole, part) for part in parts)
    return True  # the result belongs to other things than nodes or edges


def _same(wanted: torch.Tensor, found: torch.Tensor, largest: float | None = None) -> bool:
    """Return whether two tensors are equal up to rounding, relative to ``largest``, or to the largest value of ``wanted``."""
    if wanted.shape != found.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, found)
    scale = float(wanted.abs().max()) if largest is None and wanted.numel() else largest or 0.0
    return torch.allclose(wanted, found, rtol=0, atol=_TOLERANCE * max(scale, 1e-12), equal_nan=True)
