"""One model of the zoo on one machine and on ranks that are threads: are its results and gradients the same?"""

from __future__ import annotations

import copy
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import sort_edge_index

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads
from pyg_zoo import graph as zoo
from pyg_zoo.specimens import Specimen

TOLERANCE = 1e-4
EQUAL, REFUSED, WRONG, CRASH, HANG, UNUSABLE = "equal", "refused", "WRONG", "CRASH", "HANG", "unusable"
_PASSES = (True, True, False)  # is it a pass of training? edges that come again are aggregated by a plan
_FLOOR = 0.1  # of the largest gradient: the errors of small ones are relative to this
_LEAVES = ("x", "large", "x_0", "layers")
_WAIT_SECONDS, _ALL_SECONDS = 15.0, 60.0


@dataclass(frozen=True)
class Outcome:
    """The outcome for a model. kind: one of the names above; ``unusable`` if PyG's own model does not run on the graph. error:
    the largest one, relative.
    """

    kind: str
    text: str = ""
    error: float = 0.0

    @property
    def is_right(self) -> bool:
        """Return whether the model is equal or refused."""
        return self.kind in (EQUAL, REFUSED)


@dataclass
class Pass:
    """One pass: the result, the gradients of parameters and of inputs by name, and the buffers after it."""

    result: Any
    gradients: dict[str, Tensor] = field(default_factory=dict)
    of_inputs: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def outcomes(specimen: Specimen, *, check: bool = True, parallel: bool = False) -> list[Outcome]:
    """The outcomes on one rank and on three ranks. Their rehearsals are the same, so a model that one rank has passed has none
    on three.
    """
    first, many = zoo.RANKS
    on_one = compare(specimen, first, check=check, parallel=parallel)
    return [on_one, compare(specimen, many, check=check and on_one.kind != EQUAL, parallel=parallel)]


def compare(specimen: Specimen, ranks: int, *, check: bool = True, parallel: bool = False) -> Outcome:
    """Run the model on one machine and on ``ranks`` ranks that are threads. check: with the rehearsal."""
    path = zoo.parts_file(ranks, parallel=parallel, weighted="edge_weight" in specimen.takes)
    try:
        wanted = on_one_machine(specimen, parallel=parallel)
    except Exception as error:
        return Outcome(UNUSABLE, _in_words(error))
    model = specimen.make()  # not in threads, which share torch's generator

    def program(world: World) -> tuple[Tensor, list[Pass]]:
        return on_a_rank(world, specimen, copy.deepcopy(model), path, check=check, parallel=parallel)

    try:
        found = on_threads(ranks, program, timeout_seconds=_WAIT_SECONDS)
    except HpcgnnError as error:
        return Outcome(REFUSED, " ".join(str(error).split()))
    except TimeoutError as error:
        return Outcome(HANG, str(error))
    except Exception as error:
        calls = traceback.extract_tb(error.__traceback__)[:-4:-1]
        places = " < ".join(f"{Path(call.filename).name}:{call.lineno}" for call in calls)
        return Outcome(CRASH, f"{_in_words(error)} [{places}]")
    return judge(wanted, found)


def on_one_machine(specimen: Specimen, *, parallel: bool = False) -> list[Pass]:
    """The passes of PyG's own model."""
    return run(specimen, specimen.make(), zoo.in_forms(_whole(specimen, parallel=parallel)))


def on_a_rank(
    world: World, specimen: Specimen, model: nn.Module, path: Path, *, check: bool = True, parallel: bool = False
) -> tuple[Tensor, list[Pass]]:
    """The original ids of a rank's nodes, and the passes of the distributed ``model``. Collective."""
    graph, mine = zoo.part(world, path, parallel=parallel)
    distributed = hpcgnn.distribute(model, graph, check=check)
    return graph.original_ids, run(specimen, distributed, zoo.in_forms(mine))


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _whole(specimen: Specimen, *, parallel: bool) -> dict[str, Tensor]:
    data = zoo.whole(parallel=parallel)
    if not specimen.sorted_edges:
        return data
    names = zoo.OF_EDGES
    edges, attributes = sort_edge_index(data["edge_index"], [data[name] for name in names], sort_by_row=False)
    return data | dict(zip(names, attributes, strict=True)) | {"edge_index": edges}


def run(specimen: Specimen, model: nn.Module, data: dict[str, Tensor]) -> list[Pass]:
    """Some passes without dropout, forward and backward. Backward starts from the result's rows times ``pull``."""
    passes = []
    for training in _PASSES:
        if training and not specimen.training:
            continue
        model.train(training)
        given = {name: data[of] for name, of in specimen.arguments.items()}
        leaves = {
            name: value.detach().clone().requires_grad_()
            for name, value in given.items()
            if specimen.arguments[name] in _LEAVES
        }
        model.zero_grad()
        done = Pass(model(**given | leaves))
        if isinstance(done.result, Tensor):
            if done.result.requires_grad and _has_rows(done, len(data["pull"])):
                rows = done.result.flatten(1).sum(1) if done.result.dim() > 1 else done.result
                (rows * data["pull"]).sum().backward()
            done.result = done.result.detach()
        done.gradients = {name: _gradient(leaf) for name, leaf in model.named_parameters()}
        done.of_inputs = {name: _gradient(leaf) for name, leaf in leaves.items()}
        done.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        passes.append(done)
    return passes


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.detach().clone()


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A tensor of one machine and the same of all ranks. floor: the least value that an error is relative to."""

    name: str
    one: Tensor
    many: Tensor
    floor: float = 0.0

    @property
    def error(self) -> float:
        """The largest difference, relative to the largest value of :attr:`one`; infinity for another shape."""
        one, many = self.one, self.many
        if one.shape != many.shape or not torch.equal(one.isnan(), many.isnan()):
            return float("inf")
        if not one.is_floating_point():
            return 0.0 if torch.equal(one, many) else float("inf")
        if not one.numel():
            return 0.0
        one, many = one.nan_to_num(), many.nan_to_num()
        return float((one - many).abs().max()) / max(float(one.abs().max()), self.floor, 1e-6)


def judge(wanted: list[Pass], found: list[tuple[Tensor, list[Pass]]]) -> Outcome:
    """Compare the passes of all ranks with those of one machine. found: the results of :func:`on_a_rank`."""
    ids = [mine for mine, _ in found]
    worst = Pair("nothing", torch.zeros(0), torch.zeros(0))
    for number, (whole, *parts) in enumerate(zip(wanted, *(passes for _, passes in found), strict=True)):
        if not _has_rows(whole, sum(map(len, ids))):
            return Outcome(WRONG, f"not refused, but its result is {_kind(whole.result)}, without a row for each node")
        if not all(_has_rows(part, len(mine)) for part, mine in zip(parts, ids, strict=True)):
            return Outcome(WRONG, f"results of ranks are {', '.join(_kind(part.result) for part in parts)}")
        for pair in _pairs(f"pass {number + 1}: ", whole, parts, torch.cat(ids)):
            worst = max(worst, pair, key=lambda each: each.error)
    if worst.error <= TOLERANCE:
        return Outcome(EQUAL, error=worst.error)
    return Outcome(WRONG, f"{worst.name} differs by {worst.error:.1e}", worst.error)


def _pairs(name: str, whole: Pass, parts: list[Pass], order: Tensor) -> Iterator[Pair]:
    yield Pair(f"{name}the result", whole.result[order], torch.cat([part.result for part in parts]))
    gradients = (*whole.gradients.values(), *whole.of_inputs.values())
    floor = max([_FLOOR * float(value.abs().max()) for value in gradients if value.numel()], default=0.0)
    for key, value in whole.gradients.items():
        yield Pair(
            f"{name}the gradient of {key}", value, torch.stack([part.gradients[key] for part in parts]).sum(0), floor
        )
    for key, value in whole.of_inputs.items():
        shares = torch.cat([part.of_inputs[key] for part in parts])
        yield Pair(f"{name}the gradient of the input {key}", value[order], shares, floor)
    for key, value in whole.buffers.items():
        for part in parts:
            yield Pair(f"{name}the buffer {key} of a rank", value, part.buffers[key])


def _has_rows(done: Pass, count: int) -> bool:
    return isinstance(done.result, Tensor) and done.result.shape[:1] == (count,)


def _kind(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


# -- a process for each, so that nothing that it does ends the program -----------------------------------------------------


def alone(program: Callable[[], list[Outcome]], seconds: float = _ALL_SECONDS) -> list[Outcome]:
    """The outcomes of ``program`` in a process of its own, which is ended after ``seconds``."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            torch.set_num_threads(
                1
            )  # after a fork, torch makes its pool of threads anew; threads must not do so at a time
            made = program()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(made, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    ready = bool(select.select([reading], [], [], seconds)[0])
    with os.fdopen(reading, "rb") as pipe:
        if not ready:
            os.kill(child, signal.SIGKILL)
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not ready:
        return [Outcome(HANG, f"nothing after {seconds:.0f} s")] * len(zoo.RANKS)
    if not said:
        return [Outcome(CRASH, f"the process ended by signal {status & 127}")] * len(zoo.RANKS)
    return pickle.loads(said)  # noqa: S301  (the child has made it)
