"""The measurement of ``hpcgnn bench plan``: the products of each rank of a plan, one rank after another in one process.

A rank's products are S x, L x and R times the rows received, with the rows of the file's order; backward, those of the
transposes. With many ranks only some are measured: those with the most entries, and others drawn at random, which stand for the
rest in the mean. Nothing is sent, and no other rank competes for the memory, so the seconds are a rank's own; the fastest round
counts, because other work of the machine only adds to the seconds, and the largest of many would be that of a disturbed rank.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan, is_stored
from hpcgnn.devices import CPU
from hpcgnn.kernels import Csr, spmm
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.names import DIRECTIONS, Advance
from hpcgnn.nn.linear_map import as_csr
from hpcgnn.plan import AggregationPlan
from hpcgnn.plan.plan import max_over_mean

_PASSES = 3  # over all ranks, because a disturbance may last longer than the rounds of one rank


def run(
    path: Path, advance: Advance, *, strategy: str, width: int, most_ranks: int, rounds: int, threads: int
) -> dict[str, Any]:
    """Measure up to ``most_ranks`` ranks of the plan for ``strategy`` in ``path``; ``advance`` counts them, in each pass. width:
    columns of the rows. Raises HpcgnnError if the plan is not in the file, or the file is damaged."""
    torch.set_num_threads(threads)
    with PartsFile(path) as parts:
        plan, work = stored_plan(parts, strategy)
        heaviest, others = chosen(work, most_ranks)
        passes = [
            [_measured(plan.part(int(rank), edges=False).map(as_csr), width, rounds, advance) for rank in (*heaviest, *others)]
            for _ in range(_PASSES)
        ]  # fmt: skip
    measured = np.min(passes, axis=0)
    found = results.about(CPU, threads, rounds, ranks=int(work.size), ranks_measured=len(measured), strategy=strategy)
    found |= {"graph": str(path), "width": width, "work_imbalance": max_over_mean(work)}
    seconds = np.concatenate((measured, measured.sum(axis=1, keepdims=True)), axis=1)
    found["directions"] = {
        name: summary(each, heaviest.size, work.size)
        for name, each in zip((*DIRECTIONS, "both"), seconds.T, strict=True)
    }
    imbalance = {"work_imbalance": found["work_imbalance"]}
    return found | {
        "lines": [results.line({"direction": name}, **each, **imbalance) for name, each in found["directions"].items()]
    }


def chosen(work: np.ndarray, most_ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranks to measure: half of ``most_ranks`` with the most work (P,), and half of them drawn from the others; all ranks if
    they are no more."""
    order = np.argsort(-work, kind="stable")
    if work.size <= most_ranks:
        return order[:0], order
    heaviest, rest = np.split(order, [most_ranks // 2])
    return heaviest, np.random.default_rng(0).choice(rest, most_ranks - heaviest.size, replace=False)


def stored_plan(parts: PartsFile, strategy: str) -> tuple[StoredPlan, np.ndarray]:
    """The plan for ``strategy`` in an open file, and the (P,) entries of L, S and R together. Raises HpcgnnError without it."""
    if not is_stored(parts, strategy):
        said = f"store one with `hpcgnn plan {parts.path} --strategy {strategy}`"
        raise HpcgnnError(f"{parts.path} has no plan for the strategy {strategy}: {said}")
    plan = StoredPlan(parts, strategy)
    return plan, sum(plan.entries().values(), np.zeros(parts.num_parts, np.int64))


def summary(seconds: np.ndarray, heaviest: int, ranks: int) -> dict[str, float]:
    """The mean of all ranks and the largest relative to it; the first ``heaviest`` of ``seconds`` stand for themselves."""
    total = float(seconds[:heaviest].sum() + seconds[heaviest:].mean() * (ranks - heaviest))
    return {"seconds": total / ranks, "seconds_imbalance": float(seconds.max()) * ranks / total}


def _measured(plan: AggregationPlan[Csr], width: int, rounds: int, advance: Advance) -> list[float]:
    """The seconds of the products of one rank, in each direction: the fastest of ``rounds``."""
    found = [_products(way, width, rounds) for way in (plan, plan.reverse())]
    advance(1)
    return found


def _products(plan: AggregationPlan[Csr], width: int, rounds: int) -> float:
    x, received = (torch.ones(matrix.num_cols, width) for matrix in (plan.local, plan.receive))
    sent, z = (torch.empty(matrix.num_rows, width) for matrix in (plan.send, plan.local))
    seconds = []
    for _ in range(1 + rounds):  # the first one prepares the matrices
        began = time.perf_counter()
        spmm(plan.send, x, out=sent, accumulate=False)
        spmm(plan.local, x, out=z, accumulate=False)
        spmm(plan.receive, received, out=z)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
