"""The ranks that are looked at, and how a check runs on them so that none is left waiting for another one that has a problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm.agreement import together
from hpcgnn.comm.world import World
from hpcgnn.doctor.finding import BROKEN, Finding
from hpcgnn.errors import HpcgnnError, told

Fact = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """The argument of every check.

    folder: where files of several ranks go. by_doctor: the doctor has chosen how many ranks there are and where they run, so that
    this is no finding.
    """

    world: World
    folder: Path
    by_doctor: bool = False

    @cached_property
    def nodes(self) -> list[int]:
        """The lowest rank of each rank's node. Collective when it is first asked for."""
        return self.world.nodes().tolist()


@dataclass(frozen=True)
class Check:
    """name: short, for the table. run: collective; raises the same HpcgnnError on every rank where it cannot look."""

    name: str
    run: Callable[[Job], Finding | None]

    def finding(self, job: Job) -> Finding | None:
        """Of all ranks, the same on each; None where there is nothing to look at. Collective."""
        try:
            return self.run(job)
        except HpcgnnError as error:
            if not error.agreed and job.world.size > 1:  # the others do not know of it: the job must end
                raise
            return Finding(self.name, "", BROKEN, str(error))


def by_rank(
    name: str, look: Callable[[Job], Fact], judge: Callable[[list[Fact], Job], Finding | None], *, each: bool = True
) -> Check:
    """A check of facts that every rank finds by itself, which are then judged together.

    look, judge: not collective; whatever either raises becomes a finding. each: every rank looks, not rank 0 alone.
    """

    def run(job: Job) -> Finding | None:
        fact: Fact = {}
        with guarded(job.world, f"look at {name}"):
            if each or job.world.rank == 0:
                fact = look(job)
        facts = gathered(job.world, fact)
        _ = job.nodes  # collective, so not under the guard that follows
        found: list[Finding | None] = []
        with guarded(job.world, f"judge {name}"):
            found.append(judge(facts, job))
        return found[0]

    return Check(name, run)


@contextmanager
def guarded(world: World, doing: str) -> Iterator[None]:
    """As :func:`hpcgnn.comm.agreement.together`, and for any exception: the doctor is to go on. Names the rank. Collective."""
    with together(world, doing):
        try:
            yield
        except Exception as error:
            raise HpcgnnError(_sentence(error) + (f" (on rank {world.rank})" if world.size > 1 else "")) from error


def _sentence(error: Exception) -> str:
    if isinstance(error, HpcgnnError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {told(str(error))}"


def gathered(world: World, fact: Fact) -> list[Fact]:
    """Every rank's fact, by rank. Collective; O(size) memory."""
    mine = np.frombuffer(json.dumps(fact).encode(), np.uint8)
    longest = int(world.allreduce(np.array([mine.size]), "max", "the facts of all ranks")[0])
    padded = np.full(longest, ord(" "), np.uint8)
    padded[: mine.size] = mine
    return [json.loads(row.tobytes()) for row in world.allgather(padded)]
