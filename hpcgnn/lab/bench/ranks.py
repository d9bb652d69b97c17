"""The measurement of ``hpcgnn bench ranks``: the training of each rank of a plan, one rank after another in one process.

A rank trains with its own nodes, matrices and messages, so that its products, element-wise work and codecs are those of the job.
The other ranks are imagined (:mod:`hpcgnn.world.lone_world`): nothing is sent, and nobody is waited for. No other rank competes
for cores or memory. A rank without training nodes leaves out the optimiser's step.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.arguments import HOST_DEVICE
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU
from hpcgnn.graph.local_graph import load
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.epochs import WARM_UP, bare_trainer
from hpcgnn.lab.bench.names import Advance
from hpcgnn.lab.bench.plan_work import chosen
from hpcgnn.nn.config import AUTO, KEEP
from hpcgnn.plan.plan import max_over_mean
from hpcgnn.train.account import strategy_of
from hpcgnn.train.run_config import NODE, RunConfig
from hpcgnn.world.lone_world import LoneWorld

PHASES = ("aggregation", "quantization", "other")  # of computation
_WAITS = ("communication_wait", "synchronisation")
_PASSES = 2  # over all ranks, because a disturbance may last longer than the epochs of one rank


def check(config: RunConfig) -> RunConfig:
    """The settings for ranks that run alone. Raises HpcgnnError for those that need the other ranks, or another device."""
    if config.task != NODE or not config.policy.is_off or config.messages.message_coding != "plain":
        raise HpcgnnError(
            "each rank is measured alone, so nothing may be decided by all ranks: choose --task node, a number for --bits, "
            "--staleness off and --message-coding plain"
        )
    if config.device not in (AUTO, HOST_DEVICE) or config.memory_limit != "none":
        raise HpcgnnError("ranks are measured on the CPU, one at a time: leave out --device and --memory-limit")
    return replace(config, activations=KEEP if config.activations == AUTO else config.activations)


def run(
    path: Path, config: RunConfig, work: np.ndarray, most_ranks: int, rounds: int, threads: int, advance: Advance
) -> dict[str, Any]:
    """Train up to ``most_ranks`` ranks of the plan in a file, one after another; ``advance`` counts them, in each of two passes.
    work: (P,) entries of each rank, as of :func:`hpcgnn.lab.bench.plan_work.stored_plan`. rounds: number of epochs of each rank
    in a pass, whose median counts; the faster pass counts.

    ``seconds_of_ranks`` of the result is (ranks, 3): the seconds of each measured rank by phase of :data:`PHASES`.
    """
    torch.set_num_threads(threads)
    heaviest, others = chosen(work, most_ranks)
    measured = np.concatenate((heaviest, others))
    passes, arithmetics = np.empty((_PASSES, measured.size, len(PHASES))), set()
    for number in range(_PASSES):
        for place in np.random.default_rng(number).permutation(measured.size):  # clocks may drift
            world = LoneWorld(int(measured[place]), work.size)
            passes[number, place], compute = _epochs(path, config, world, rounds)
            arithmetics.add(compute)
            gc.collect()
            advance(1)
    if len(arithmetics) > 1:
        said = f"ranks chose different arithmetics ({', '.join(sorted(arithmetics))}), which those of a job agree on"
        raise HpcgnnError(f"{said}: give one of them with --compute")
    faster = passes.sum(axis=2).argmin(axis=0)
    seconds = passes[faster, np.arange(measured.size)]
    found = results.about(CPU, threads, rounds, ranks=int(work.size), ranks_measured=len(measured))
    found |= {
        "graph": str(path),
        "strategy": strategy_of(config),
        "compute": compute,
        "work_imbalance": max_over_mean(work),
    }
    return found | {"heaviest": heaviest.size, "measured": measured.tolist(), "seconds_of_ranks": seconds.tolist()}


def _epochs(path: Path, config: RunConfig, world: LoneWorld, rounds: int) -> tuple[tuple[float, ...], str]:
    """The median seconds of the epochs of a rank by phase, and the arithmetic that it chose."""
    graph = load(path, world, features=config.features).with_target(config.target)
    trainer = bare_trainer(graph.reordered(config.node_order, config.model.hidden), config)
    records = [trainer.run_epoch() for _ in range(WARM_UP + rounds)][WARM_UP:]
    median = {
        name: statistics.median(record[f"{name}_seconds"] for record in records) for name in (*PHASES[:2], *_WAITS)
    }
    whole = statistics.median(record["seconds"] for record in records)
    return (median["aggregation"], median["quantization"], whole - sum(median.values())), records[-1]["compute"]
