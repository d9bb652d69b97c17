"""The measurement of ``hpcgnn bench overhead``: an epoch of a graph so small that most of it is work of the framework, beside
that of PyG's layers.

PyG's loop is that of ``hpcgnn bench pyg``, with edges sorted by destination. hpcgnn trains the same model, without dropout, on
rank 0 and then on all ranks, with each bit-width. The contenders take turns on the same thread, and the seconds are those of rank
0, without evaluations. The calls of Python functions are counted in epochs that are not timed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from hpcgnn.devices import CPU
from hpcgnn.graph.local_graph import LocalGraph, load
from hpcgnn.lab.bench import breakdown, pyg, results
from hpcgnn.lab.bench.measure import Timing
from hpcgnn.lab.bench.names import Advance, PygSettings
from hpcgnn.lab.bench.problem import seconds_of
from hpcgnn.nn.config import ModelConfig
from hpcgnn.world import MpiWorld, World, raise_on_all_ranks

PYG, BITS = "PyG", (32, 2)
_EPOCHS = 20  # of each contender in a round
_TRIES = 25
_RANKS_PER_NODE = "HPCGNN_RANKS_PER_NODE"
Epochs = Callable[[int], list[float]]  # trains a number of epochs, and returns the seconds of each


def run(graph: LocalGraph, settings: PygSettings, rounds: int, advance: Advance) -> dict[str, Any]:
    """Measure on all ranks, with one thread in each; ``advance`` counts the rounds and a warm-up. Collective.

    settings: those of the model, SAGE; all other settings have the same values in every contender.

    Raises:
        HpcgnnError: without PyG, and for graphs without dense features or training nodes.
    """
    world = graph.world
    torch.set_num_threads(1)
    with _alone() as alone:
        contenders = _contenders(graph, alone, settings)
        timings = {name: Timing() for name in contenders}
        for turn in range(rounds + 1):
            first = turn % len(contenders)  # so that no contender always follows the same one
            for name in [*contenders, *contenders][first : first + len(contenders)]:
                seconds = world.broadcast(contenders[name](_EPOCHS))  # ranks that do nothing wait here
                timings[name].rounds += [statistics.median(seconds)] * (turn > 0)
            advance(1)
        calls = {name: _python_calls(world, epochs) for name, epochs in contenders.items()}
    found = {
        name: timing.as_json() | {"to_pyg": timing.seconds / timings[PYG].seconds, "python_calls": calls[name]}
        for name, timing in timings.items()
    }
    return {
        "graph": str(graph.path), "nodes": graph.meta.num_nodes, "ranks": world.size, "threads": 1,
        "layers": settings.layers, "hidden": settings.hidden, "rounds": rounds,
        "machine": results.machine(), "versions": results.versions(mpi=world.library),
        "contenders": found, "lines": results.lines(found, "contender", {}),
    }  # fmt: skip


@contextlib.contextmanager
def _alone() -> Iterator[World]:
    """MPI's world of this rank only: a node, if one rank makes a node. Collective."""
    job, before = MpiWorld(), os.environ.get(_RANKS_PER_NODE)
    os.environ[_RANKS_PER_NODE] = "1"
    alone = job.on_my_node()
    del os.environ[_RANKS_PER_NODE]
    if before is not None:
        os.environ[_RANKS_PER_NODE] = before
    yield alone
    job.close()


def _contenders(graph: LocalGraph, alone: World, settings: PygSettings) -> dict[str, Epochs]:
    """The contenders by name. Those on one rank do nothing on the other ranks. Collective."""
    world, whole = graph.world, load(graph.path, alone, any_ranks=True)
    with raise_on_all_ranks(world, "train with PyG"):
        on_one = {PYG: _by_pyg(whole, settings)}
    on_one |= {f"hpcgnn, 1 rank, {bits} bits": _by_hpcgnn(whole, settings, bits) for bits in BITS}
    if world.rank:
        on_one = dict.fromkeys(on_one, lambda count: [])
    together = BITS if world.size > 1 else ()
    return on_one | {f"hpcgnn, {world.size} ranks, {bits} bits": _by_hpcgnn(graph, settings, bits) for bits in together}


def _by_pyg(whole: LocalGraph, settings: PygSettings) -> Epochs:
    pyg.require()
    problem = pyg.problem_of(whole)
    torch.manual_seed(settings.seed)
    model = pyg.Model(settings, problem.x.shape[1], problem.classes)
    return lambda count: pyg.train(model, problem, replace(settings, epochs=count), CPU)[0]


def _by_hpcgnn(graph: LocalGraph, settings: PygSettings, bits: int) -> Epochs:
    config = ModelConfig(layers=settings.layers, hidden=settings.hidden, dropout=settings.dropout)
    trainer = breakdown.trainer(graph, config, bits)
    return lambda count: [seconds_of(CPU, trainer.run_epoch) for _ in range(count)]


def _python_calls(world: World, epochs: Epochs) -> int:
    """Number of Python functions that rank 0 calls in an epoch: the difference between two epochs and one. Of several tries the
    smallest number counts, because a rank that waits calls functions, too. Collective."""
    one, two = (min(_calls(epochs, count) for _ in range(_TRIES)) for count in (1, 2))
    return int(world.broadcast(two - one))


def _calls(epochs: Epochs, count: int) -> int:
    events = Counter[str]()
    sys.setprofile(lambda frame, event, argument: events.update((event,)))
    try:
        epochs(count)
    finally:
        sys.setprofile(None)
    return events["call"]
