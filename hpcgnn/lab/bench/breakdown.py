"""The measurement of ``hpcgnn bench breakdown``: the cost of an epoch's time breakdown, which reads clocks and reduces their
times over ranks.

Epochs with and without it take turns, in alternating order.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats

from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.traffic import Timings
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.names import Advance
from hpcgnn.nn.build import build_model
from hpcgnn.nn.config import ModelConfig
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World

WARM_UP = 3
_TRIMMED = 0.1  # share that is cut off at each end, as other work of the machine disturbs single epochs
_NEVER = 1 << 30


class NoTimings(Timings):
    """Timings that measure nothing."""

    def add(self, phase: str, seconds: float) -> None:
        """Do nothing."""

    def measure(self, phase: str) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # for less
        """Only run the body."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. epochs: number of epochs of each kind. bits, hidden: as in training; its other settings have
    their defaults."""

    epochs: int = 100
    bits: int = 2
    hidden: int = 256


def run(graph: LocalGraph, settings: Settings, advance: Advance) -> dict[str, Any]:
    """Measure on all ranks; ``advance`` counts pairs of epochs. Collective."""
    model = ModelConfig(hidden=settings.hidden)
    trainers = [trainer(graph, model, settings.bits, timings) for timings in (Timings(), NoTimings())]
    seconds = []
    for number in range(WARM_UP + settings.epochs):
        seconds.append(_turn(graph.world, trainers, number))
        advance(1)
    found = summary(np.array(seconds[WARM_UP:]))
    about: dict[str, Any] = {"graph": str(graph.path), "ranks": graph.world.size, "threads": torch.get_num_threads()}
    about["versions"] = results.versions(mpi=graph.world.library)
    timed = [
        results.line({"part": f"{way} the breakdown"}, seconds=found[f"{way}_seconds"], overhead_share=share)
        for way, share in (("with", found["cost"]), ("without", None))
    ]
    return about | found | {"lines": timed}


def trainer(graph: LocalGraph, config: ModelConfig, bits: int, timings: Timings | None = None) -> Trainer:
    """A trainer that neither evaluates nor writes files. Collective."""
    messages = Messages(graph.world, MessageConfig(bits=bits), timings=timings, device=graph.device)
    model = build_model(config, graph, messages=messages)
    never = TrainConfig(epochs=_NEVER, eval_every=_NEVER, checkpoint_every=_NEVER)
    return Trainer(model, graph, never, stop=StopRequest())


def _turn(world: World, trainers: list[Trainer], number: int) -> list[float]:
    """The seconds of an epoch with the breakdown and of one without it. Collective."""
    measured, plain = trainers
    ways = [measured.run_epoch, lambda: plain.step(number)]
    seconds = [0.0, 0.0]
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


def summary(seconds: np.ndarray) -> dict[str, float]:
    """The medians of ``seconds`` (n, 2), and the trimmed mean of the pairs' relative differences with its 95 % interval."""
    with_it, without = np.median(seconds, axis=0)
    kept = stats.trimboth((seconds[:, 0] - seconds[:, 1]) / without, _TRIMMED)
    interval = stats.t.ppf(0.975, kept.size - 1) * stats.sem(kept)
    values = {"with_seconds": with_it, "without_seconds": without, "cost": kept.mean(), "cost_interval": interval}
    return {"epochs": seconds.shape[0]} | {name: float(value) for name, value in values.items()}
