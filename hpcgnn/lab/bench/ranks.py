"""The measurement of ``hpcgnn bench ranks``: the training of each rank of a plan, one rank after another in one process.

A rank trains with its own nodes, matrices and messages, so that its products, element-wise work and codecs are those of the job.
The other ranks are imagined (:mod:`hpcgnn.world.lone_world`): nothing is sent, and nobody is waited for.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.devices import CPU
from hpcgnn.graph.local_graph import load
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.epochs import WARM_UP, bare_trainer
from hpcgnn.lab.bench.names import Advance
from hpcgnn.lab.bench.plan_work import chosen, stored_plan
from hpcgnn.plan.plan import max_over_mean
from hpcgnn.train.account import strategy_of
from hpcgnn.train.run_config import NODE, RunConfig
from hpcgnn.world.lone_world import LoneWorld

PHASES = ("aggregation", "quantization", "other")  # of computation
_WAITS = ("communication_wait", "synchronisation")


def run(path: Path, config: RunConfig, most_ranks: int, rounds: int, threads: int, advance: Advance) -> dict[str, Any]:
    """Train up to ``most_ranks`` ranks of the plan in ``path``, one after another; ``advance`` counts them. rounds: number of
    epochs of each, whose median counts. Raises HpcgnnError for settings that need the other ranks, or without a stored plan.

    ``seconds_of_ranks`` of the result is (ranks, 3): the seconds of each measured rank by phase of :data:`PHASES`.
    """
    if config.task != NODE or not config.policy.is_off or config.messages.message_coding != "plain":
        raise HpcgnnError(
            "each rank is measured alone, so nothing may be decided by all ranks: choose --task node, a number for --bits, "
            "--staleness off and --message-coding plain"
        )
    torch.set_num_threads(threads)
    strategy = strategy_of(config)
    with PartsFile(path) as parts:
        _, work = stored_plan(parts, strategy)
    heaviest, others = chosen(work, most_ranks)
    measured = [int(rank) for rank in (*heaviest, *others)]
    seconds, arithmetics = [], []
    for rank in measured:
        of_rank, compute = _epochs(path, config, LoneWorld(rank, work.size), rounds)
        seconds.append(of_rank)
        arithmetics.append(compute)
        advance(1)
    found = results.about(CPU, threads, rounds, ranks=int(work.size), ranks_measured=len(measured), strategy=strategy)
    found |= {"graph": str(path), "compute": statistics.mode(arithmetics), "work_imbalance": max_over_mean(work)}
    return found | {"heaviest": heaviest.size, "measured": measured, "seconds_of_ranks": np.array(seconds).tolist()}


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
