"""Rank program: what an epoch's time breakdown costs, in its clocks and in reducing their times over ranks.

usage: hpcgnn launch -n RANKS -t 1 python bench_breakdown.py PARTS.h5 [--epochs 100] [--bits 2] [--hidden 256]

Epochs with and without it take turns. Prints one JSON object; `tools/performance.py --breakdown` puts it into the documents.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path

import numpy as np
from scipy import stats

import hpcgnn
from hpcgnn.comm import Messages, MpiWorld, World
from hpcgnn.comm.messages import MessageConfig
from hpcgnn.comm.threads import use_threads
from hpcgnn.comm.timings import Timings
from hpcgnn.memory import keep_freed_memory
from hpcgnn.stop import StopRequest

_WARM_UP = 3


class NoTimings(Timings):
    """Clocks that nobody reads."""

    def add(self, phase: str, seconds: float) -> None:
        """Forget it."""

    def measure(self, phase: str) -> contextlib.AbstractContextManager[None]:
        """Only run the body."""
        return contextlib.nullcontext()


def main() -> None:
    """Measure, and print on rank 0. Collective."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path)
    parser.add_argument("--epochs", type=int, default=100, help="of each kind")
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    arguments = parser.parse_args()
    world = MpiWorld()
    use_threads(world)
    graph = hpcgnn.load(arguments.parts, world)
    keep_freed_memory()
    trainers = [trainer(graph, arguments, timings) for timings in (Timings(), NoTimings())]
    seconds = np.array([turn(world, trainers, number) for number in range(_WARM_UP + arguments.epochs)])[_WARM_UP:]
    if world.rank == 0:
        print(json.dumps({"graph": str(arguments.parts), "ranks": world.size} | summary(seconds)))


def trainer(graph: hpcgnn.graph.LocalGraph, arguments: argparse.Namespace, timings: Timings) -> hpcgnn.Trainer:
    """One that measures its epochs by ``timings``."""
    messages = Messages(graph.world, MessageConfig(bits=arguments.bits), timings=timings)
    model = hpcgnn.build_model(hpcgnn.ModelConfig(hidden=arguments.hidden), graph, messages=messages)
    never = hpcgnn.TrainConfig(epochs=1 << 30, eval_every=1 << 30, checkpoint_every=1 << 30)
    return hpcgnn.Trainer(model, graph, never, stop=StopRequest())


def turn(world: World, trainers: list[hpcgnn.Trainer], number: int) -> list[float]:
    """Seconds of an epoch with the breakdown and of one without, in the one order and then in the other. Collective."""
    measured, plain = trainers
    ways = [measured.run_epoch, lambda: plain.step(number)]
    seconds = [0.0, 0.0]
    for way in (0, 1) if number % 2 else (1, 0):
        meet(world)
        started = time.perf_counter()
        ways[way]()
        meet(world)
        seconds[way] = time.perf_counter() - started
    return seconds


def meet(world: World) -> None:
    """Wait for all ranks, so that an epoch is not charged for those that are late from the one before. Collective."""
    world.allreduce(np.zeros(1))


def summary(seconds: np.ndarray) -> dict[str, float]:
    """Medians of (n, 2) seconds, and the mean difference over them with its 95 % interval."""
    with_it, without = np.median(seconds, axis=0)
    differences = (seconds[:, 0] - seconds[:, 1]) / without
    kept = stats.trimboth(differences, 0.1)  # what else the machine did befalls single epochs
    interval = stats.t.ppf(0.975, kept.size - 1) * stats.sem(kept)
    values = {"with_seconds": with_it, "without_seconds": without, "cost": kept.mean(), "cost_interval": interval}
    return {"epochs": seconds.shape[0]} | {name: float(value) for name, value in values.items()}


if __name__ == "__main__":
    main()
