"""What ``hpcgnn bench exchange`` measures: how much of an exchange's time local aggregation hides, in each direction.

Three timings take turns: L x alone, the exchange alone, and both as training does them. Ranks start each one together, and a
round counts with its slowest rank. Exchanges are timed from when their bytes are handed to MPI; encoding comes before that
and decoding after it, in each of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import MessageConfig, Messages
from hpcgnn.graph import LocalGraph
from hpcgnn.kernels import spmm
from hpcgnn.nn import Aggregator, make_aggregator
from hpcgnn.study.measure import Advance
from hpcgnn.study.report import Requirement

LEAST_HIDDEN = 0.8
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Settings:
    """width: columns of the rows that travel. bits, collective: as in training. rounds: of which the median counts."""

    width: int = 256
    bits: int = 32
    strategy: str = "hybrid"
    collective: str = "auto"
    rounds: int = 15


def run(graph: LocalGraph, settings: Settings, advance: Advance) -> dict[str, Any]:
    """Measure both directions of a sum over in-edges; ``advance`` counts rounds, ``2 * rounds`` in all. Collective."""
    world = graph.world
    messages = Messages(world, MessageConfig(bits=settings.bits, collective=settings.collective))
    aggregator = make_aggregator(graph, "sum", settings.strategy, messages=messages)
    found: dict[str, Any] = {
        "graph": str(graph.path), "ranks": world.size, "threads": torch.get_num_threads(), "mpi": world.library,
        "width": settings.width, "bits": settings.bits, "strategy": settings.strategy, "rounds": settings.rounds,
        "collective": "alltoallv" if aggregator.exchange.links is None else "neighbour",
    }  # fmt: skip
    found["directions"] = {
        name: _measure(way, settings, advance)
        for name, way in (("forward", aggregator), ("backward", aggregator.reverse))
    }
    return found | {"requirements": [line.as_json() for line in _requirements(found)]}


def _measure(aggregator: Aggregator, settings: Settings, advance: Advance) -> dict[str, Any]:
    world, messages = aggregator.exchange.messages.world, aggregator.exchange.messages
    x = torch.randn(aggregator.plan.local.num_cols, settings.width, generator=torch.Generator().manual_seed(world.rank))
    z = torch.zeros(aggregator.plan.local.num_rows, settings.width)
    calls: dict[str, Callable[[], float]] = {
        "aggregate": _Aggregate(aggregator, x, z),
        "exchange": _Exchange(aggregator, x),
        "both": _Both(aggregator, x, z),
    }
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    before = messages.bytes_sent.total()
    for number in range(_WARM_UP_ROUNDS + settings.rounds):
        for name, call in calls.items():
            messages.begin_epoch(number)
            world.allreduce(np.zeros(1), what="every rank to begin a round")
            seconds = float(world.allreduce(np.array([call()]), "max")[0])
            if number >= _WARM_UP_ROUNDS:
                rounds[name].append(seconds)
        advance(int(number >= _WARM_UP_ROUNDS))
    exchanges = 2 * (_WARM_UP_ROUNDS + settings.rounds)
    mine = np.array([(messages.bytes_sent.total() - before) // exchanges])
    return _summary(rounds) | {
        "bytes": int(world.allreduce(mine)[0]),
        "largest_bytes_of_a_rank": int(world.allreduce(mine, "max")[0]),
    }


@dataclass
class _Aggregate:
    """L x, seconds."""

    aggregator: Aggregator
    x: torch.Tensor
    z: torch.Tensor

    def __call__(self) -> float:
        started = time.perf_counter()
        spmm(self.aggregator.plan.local, self.x, out=self.z, accumulate=False)
        return time.perf_counter() - started


@dataclass
class _Exchange:
    """The exchange of what S x gives, seconds."""

    aggregator: Aggregator
    x: torch.Tensor

    def __call__(self) -> float:
        _, message = self.aggregator.start_step(self.x)
        self.aggregator.exchange.wait(message)
        return time.perf_counter() - message.pending.started_at


@dataclass
class _Both:
    """L x while the exchange is under way, seconds."""

    aggregator: Aggregator
    x: torch.Tensor
    z: torch.Tensor

    def __call__(self) -> float:
        _, message = self.aggregator.start_step(self.x)
        spmm(self.aggregator.plan.local, self.x, out=self.z, accumulate=False)
        self.aggregator.exchange.wait(message)
        return time.perf_counter() - message.pending.started_at


def _summary(rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the share of the shorter of the two that runs beside the other one."""
    seconds = {name: statistics.median(values) for name, values in rounds.items()}
    shorter = min(seconds["aggregate"], seconds["exchange"])
    hidden = seconds["aggregate"] + seconds["exchange"] - seconds["both"]
    return {f"{name}_seconds": value for name, value in seconds.items()} | {
        "hidden_of_shorter": hidden / shorter if shorter else None,
        "hidden_of_wire": hidden / seconds["exchange"] if seconds["exchange"] else None,
        "rounds": rounds,
    }


def _requirements(found: dict[str, Any]) -> list[Requirement]:
    what = "hidden of what can be hidden"
    return [
        Requirement(what, found["graph"], "kernel", name, line["hidden_of_shorter"], LEAST_HIDDEN)
        for name, line in found["directions"].items()
    ]
