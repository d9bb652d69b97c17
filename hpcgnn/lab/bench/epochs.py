"""The measurements of ``hpcgnn bench breakdown``, the cost of an epoch's time breakdown, which reads clocks and reduces times
over ranks, and of ``hpcgnn bench overhead``, an epoch of a graph so small that most of it is work of the framework, beside
PyG's."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats

from hpcgnn.base.process import StopRequest
from hpcgnn.devices import CPU
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.traffic import Timings
from hpcgnn.graph.local_graph import LocalGraph, load
from hpcgnn.lab.bench import peers, results
from hpcgnn.lab.bench.measure import Timing
from hpcgnn.lab.bench.names import Advance, PeerSettings
from hpcgnn.lab.bench.peer_program import Model
from hpcgnn.lab.bench.peer_program import Trainer as PeerTrainer
from hpcgnn.lab.bench.problem import seconds_of
from hpcgnn.nn.config import FLOAT32, ModelConfig
from hpcgnn.train.account import trainer_of
from hpcgnn.train.run_config import RunConfig
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import MpiWorld, World, raise_on_all_ranks

WARM_UP = 3
_TRIMMED = 0.1  # share that is cut off at each end, as other work of the machine disturbs single epochs
_NEVER = 1 << 30
PYG, BITS = "PyG", (32, 2)
_EPOCHS = 20  # of each contender in a round of the overhead
_TRIES = 25
_RANKS_PER_NODE = "HPCGNN_RANKS_PER_NODE"
Epochs = Callable[[int], list[float]]  # trains a number of epochs, and returns the seconds of each


def bare_trainer(graph: LocalGraph, run: RunConfig, timings: Timings | None = None) -> Trainer:
    """A trainer of ``run`` that neither evaluates nor writes files. Collective."""
    never: dict[str, Any] = {"epochs": _NEVER, "eval_every": _NEVER, "checkpoint_every": _NEVER}
    messages = Messages(graph.world, run.messages, timings=timings, device=graph.device)
    return trainer_of(replace(run, train=replace(run.train, **never)), graph, messages, stop=StopRequest())


def _trainer(graph: LocalGraph, config: ModelConfig, bits: int, timings: Timings | None = None) -> Trainer:
    run = RunConfig(model=config, messages=MessageConfig(bits=bits), compute=FLOAT32)
    return bare_trainer(graph, run, timings)


# -- the time breakdown ------------------------------------------------------------------------------------------------


class _NoTimings(Timings):
    def add(self, phase: str, seconds: float) -> None:
        pass

    def measure(self, phase: str) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # for less
        return contextlib.nullcontext()


def breakdown(graph: LocalGraph, epochs: int, bits: int, hidden: int, advance: Advance) -> dict[str, Any]:
    """Measure ``epochs`` epochs of each kind on all ranks; ``advance`` counts pairs of them. Other settings of training have
    their defaults. Collective."""
    model, seconds = ModelConfig(hidden=hidden), []
    measured, plain = (_trainer(graph, model, bits, timings) for timings in (Timings(), _NoTimings()))
    for number in range(WARM_UP + epochs):
        seconds.append(_turn(graph.world, measured, plain, number))
        advance(1)
    found = cost_of(np.array(seconds[WARM_UP:]))
    about: dict[str, Any] = {"graph": str(graph.path), "ranks": graph.world.size, "threads": torch.get_num_threads()}
    about["versions"] = results.versions(mpi=graph.world.library)
    lines = [
        results.line({"part": f"{way} the breakdown"}, seconds=found[f"{way}_seconds"], overhead_share=share)
        for way, share in (("with", found["cost"]), ("without", None))
    ]
    return about | found | {"lines": lines}


def _turn(world: World, measured: Trainer, plain: Trainer, number: int) -> list[float]:
    """The seconds of an epoch with the breakdown and of one without it, in alternating order. Collective."""
    ways, seconds = (measured.run_epoch, lambda: plain.step(number)), [0.0, 0.0]
    for way in (0, 1) if number % 2 else (1, 0):
        _meet(world)
        started = time.perf_counter()
        ways[way]()
        _meet(world)
        seconds[way] = time.perf_counter() - started
    return seconds


def _meet(world: World) -> None:
    """Wait for all ranks, so that an epoch does not include waiting for ranks that are late from the one before. Collective."""
    world.allreduce(np.zeros(1), what="every rank to begin an epoch")


def cost_of(seconds: np.ndarray) -> dict[str, float]:
    """The medians of ``seconds`` (n, 2), and the trimmed mean of the pairs' relative differences with its 95 % interval."""
    with_it, without = np.median(seconds, axis=0)
    kept = stats.trimboth((seconds[:, 0] - seconds[:, 1]) / without, _TRIMMED)
    interval = stats.t.ppf(0.975, kept.size - 1) * stats.sem(kept)
    values = {"with_seconds": with_it, "without_seconds": without, "cost": kept.mean(), "cost_interval": interval}
    return {"epochs": seconds.shape[0]} | {name: float(value) for name, value in values.items()}


# -- the work of the framework -----------------------------------------------------------------------------------------


def overhead(graph: LocalGraph, settings: PeerSettings, rounds: int, advance: Advance) -> dict[str, Any]:
    """Measure on all ranks, with one thread in each; ``advance`` counts the rounds and a warm-up. Collective.

    PyG's loop is that of ``hpcgnn bench pyg``, with edges sorted by destination. hpcgnn trains the same model on rank 0 and then
    on all ranks, with each bit-width. The seconds are those of rank 0, without evaluations. The calls of Python functions are
    counted in epochs that are not timed. Raises :class:`HpcgnnError` as :func:`hpcgnn.lab.bench.peers.run`.
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


def _contenders(graph: LocalGraph, alone: World, settings: PeerSettings) -> dict[str, Epochs]:
    """The contenders by name. Those on one rank do nothing on the other ranks. Collective."""
    world, whole = graph.world, load(graph.path, alone, any_ranks=True)
    with raise_on_all_ranks(world, "train with PyG"):
        on_one = {PYG: _by_pyg(whole, settings)}
    on_one |= {f"hpcgnn, 1 rank, {bits} bits": _by_hpcgnn(whole, settings, bits) for bits in BITS}
    if world.rank:
        on_one = dict.fromkeys(on_one, lambda count: [])
    together = BITS if world.size > 1 else ()
    return on_one | {f"hpcgnn, {world.size} ranks, {bits} bits": _by_hpcgnn(graph, settings, bits) for bits in together}


def _by_pyg(whole: LocalGraph, settings: PeerSettings) -> Epochs:
    peers.require_pyg()
    problem = peers.problem_of(whole)
    torch.manual_seed(settings.seed)
    trainer = PeerTrainer(Model(settings, problem), problem, settings)
    return lambda count: [trainer.timed_epoch()[0] for _ in range(count)]


def _by_hpcgnn(graph: LocalGraph, settings: PeerSettings, bits: int) -> Epochs:
    trainer = _trainer(
        graph,
        ModelConfig(layers=settings.layers, hidden=settings.hidden, dropout=settings.dropout, norm=settings.norm),
        bits,
    )
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
