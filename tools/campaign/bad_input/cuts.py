"""Files of some hundred KiB, cut at every 4 KiB; and small files, for which more places are tried."""

from __future__ import annotations

import os
from pathlib import Path

from campaign.mutations import readers
from campaign.mutations.case import Case
from campaign.mutations.fork import Task
from campaign.mutations.more_cases import command
from campaign.mutations.mutation import REFUSE, Mutation

_STEP, _SMALL_STEP = 4096, 256


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group."""
    graph, one, two = (
        (f"large-{kind}.h5", name) for kind, name in (("graph", "graph.h5"), ("1", "parts.h5"), ("2", "parts.h5"))
    )
    run = (("plain-1.h5", "parts.h5"), ("run", "run"))
    last, best = "run/checkpoints/last.pt", "run/checkpoints/best.pt"
    cases = (
        (Case("graph.h5", readers.PARTITION, (graph,), "graph.h5", ()), _STEP),
        (Case("graph.h5", command("check", "graph.h5", "--quiet"), (graph,), "graph.h5", ()), _STEP),
        (Case("parts.h5", readers.LOAD, (one,), "parts.h5", ()), _STEP),
        (Case("parts.h5 of 2", readers.PLAN, (two,), "parts.h5", ()), _STEP),
        (Case("last.pt", readers.RESUME, run, last, ()), _SMALL_STEP),
        (Case("best.pt", readers.PREDICT, run, best, ()), _SMALL_STEP),
    )
    return [_task(case, left, step) for case, step in cases for left in range(0, _size(inputs, case), step)]


def _size(inputs: Path, case: Case) -> int:
    """The size of the target among the inputs."""
    for source, name in case.copies:
        if case.target == name or case.target.startswith(f"{name}/"):
            return (inputs / source / case.target[len(name) :].lstrip("/")).stat().st_size
    raise AssertionError(case.target)


def _task(case: Case, left: int, step: int) -> Task:
    every = f"{step // 1024} KiB" if step >= 1024 else f"{step} bytes"

    def cut(folder: Path) -> Mutation:
        os.truncate(folder / case.target, left)
        return Mutation(f"cut to {left} bytes", REFUSE)

    return Task(case, f"{case.name} cut to {left} bytes", cut, f"{case.kind}, cut at every {every}")
