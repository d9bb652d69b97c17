"""Damages files one thing at a time, in a way that follows from a seed, and reports the outcome of each reader.

A reader may refuse a damaged file, with one sentence on stderr that names it. It may accept the file if it is valid: with the
result of the original file, or of the other graph that it now describes, which a second reader of text formats determines.
Everything else is a defect: a traceback, a signal, a hang, memory above twice the file (beside the memory of the valid file,
and 32 MiB), silent acceptance of a file that the schema forbids, left-over files, and execution of code in a file. A mutation
follows from the seed and its number alone, whichever other mutations run.
"""

from __future__ import annotations

import os

# Before torch is imported, because children are forked.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaign.mutations.case import Case
from campaign.mutations.cases import all_cases
from campaign.mutations.fork import ForkServer, Outcome, Task
from campaign.mutations.inputs import make_inputs
from campaign.mutations.more_inputs import make_more_inputs
from campaign.mutations.readers import warm_up
from campaign.mutations.verdicts import defects

_LONGEST_SAID = 2000


class Campaign:
    """Runs tasks with valid files in ``folder``, which are made first, in a process that forks a child for each task.

    Args:
        keep: a folder in which the files of every task are kept, damaged ones included; None to keep none.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int,
        hang_seconds: float,
        keep: Path | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.inputs, scratch = folder / "inputs", folder / "scratch"
        for made in (self.inputs, scratch):
            made.mkdir()
        warm_up(self.inputs)
        gc.collect()
        gc.freeze()  # otherwise each child's garbage collector would copy all pages of imported modules
        self.server = ForkServer(self.inputs, scratch, jobs=jobs, deadline_seconds=hang_seconds, keep=keep)
        self.server.call(lambda: make_inputs(self.inputs))
        self.server.call(lambda: make_more_inputs(self.inputs))
        self.cases = all_cases(self.inputs)
        self.weights = np.array([case.weight for case in self.cases], float)
        self.weights /= self.weights.sum()
        self.valid: dict[Case, Outcome] = {}

    def mutation(self, seed: int, number: int) -> Task:
        """The task of one mutation."""
        case = self.cases[np.random.default_rng([seed, number]).choice(len(self.cases), p=self.weights)]
        return Task(
            case,
            f"mutation {seed}:{number} of {case.name}",
            lambda folder: case.mutate(folder, np.random.default_rng([seed, number, 1])),
        )

    def run(self, tasks: Iterator[Task]) -> Iterator[dict[str, Any]]:
        """The outcome of each task, in the order in which they end.

        The undamaged files of a case are read first, because the other outcomes are compared with that one.
        """
        waiting: dict[Case, list[tuple[Task, Outcome]]] = {}
        for task, outcome in self.server.run_all(self._with_valid(tasks, waiting)):
            if task.damage is not None and task.case not in self.valid:
                waiting[task.case].append((task, outcome))
                continue
            ended = [(task, outcome)]
            if task.damage is None:
                self.valid[task.case] = outcome
                ended = waiting.pop(task.case)
                if outcome.exit != 0 and not task.case.reader.may_refuse:
                    yield _told(
                        task, outcome, {"valid": f"refused ({outcome.exit}): {outcome.stderr[-_LONGEST_SAID:]}"}
                    )
            valid = self.valid[task.case]
            for each, its in ended:
                yield _told(
                    each, its, defects(each.case, its, valid), same=its.exit == 0 and its.digest == valid.digest
                )

    def _with_valid(self, tasks: Iterator[Task], waiting: dict[Case, list[tuple[Task, Outcome]]]) -> Iterator[Task]:
        for task in tasks:
            if task.case not in self.valid and task.case not in waiting:
                waiting[task.case] = []
                yield Task(task.case, f"the valid files of {task.case.name}", None, task.group)
            yield task


def _told(task: Task, outcome: Outcome, found: dict[str, str], *, same: bool = False) -> dict[str, Any]:
    return {
        "group": task.group,
        "name": task.name,
        "what": outcome.mutation.get("what", ""),
        "exit": outcome.exit,
        "same": same,
        "defects": found,
        "said": outcome.stderr.strip()[-_LONGEST_SAID:],
        "seconds": round(outcome.seconds, 3),
    }
