"""The ranks that are checked, and the run of a check on them: no rank waits for another one that has a problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.world.world import World, raise_on_all_ranks

OK, WORTH_CHANGING, BROKEN = "ok", "worth changing", "broken"
STATES = (OK, WORTH_CHANGING, BROKEN)  # from the best to the worst

Fact = dict[str, Any]
Problem = str | tuple[str, str]  # a sentence about something that is worth changing, or a state with its sentence
Verdict = tuple[str, Iterable[Problem]]  # a few words about the machine, and its problems, of which the first is told


@dataclass(frozen=True)
class Finding:
    """The result of a check. found: a few words about the machine. state: one of :data:`STATES`. sentence: the suggested change,
    or more information; may be empty."""

    check: str
    found: str
    state: str = OK
    sentence: str = ""


def of_problems(check: str, found: str, problems: Iterable[Problem]) -> Finding:
    """A finding with the first of the ``problems``; without problems it is ok."""
    first = next(iter(problems), (OK, ""))
    return Finding(check, found, *((WORTH_CHANGING, first) if isinstance(first, str) else first))


@dataclass(frozen=True)
class Report:
    """All findings. hpcgnn: version. mpi: the MPI library in one line; empty if none starts. ranks, nodes: the number of ranks
    that were checked, and of their nodes."""

    hpcgnn: str
    mpi: str
    ranks: int
    nodes: int
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """The worst state of all findings."""
        return max((each.state for each in self.findings), key=STATES.index, default=OK)

    def data(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return asdict(self) | {"state": self.state}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Report:
        """The inverse of :meth:`data`."""
        findings = tuple(Finding(**each) for each in data["findings"])
        return cls(data["hpcgnn"], data["mpi"], data["ranks"], data["nodes"], findings)


def counted(count: int | str, noun: str) -> str:
    """A number with its noun: ``counted(2, "core") == "2 cores"``. The number may be a range such as ``"1 to 2"``."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def some_ranks(ranks: Iterable[int], most: int = 6) -> str:
    """A list of ranks in words: ``some_ranks([0, 1, 2]) == "ranks 0, 1 and 2"``. Long lists are cut after ``most``."""
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > most:
        return f"{len(numbers)} ranks ({', '.join(numbers[: most - 1])}, ...)"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


@dataclass(frozen=True)
class Job:
    """The argument of every check. folder: for files of several ranks. by_doctor: whether ``hpcgnn doctor`` chose the number and
    the place of the ranks, which are then not judged."""

    world: World
    folder: Path
    by_doctor: bool = False

    @cached_property
    def nodes(self) -> list[int]:
        """For each rank, the lowest rank of its node. The first access is collective."""
        return self.world.hosts().tolist()

    def ranks_by_node(self) -> list[list[int]]:
        """The ranks of each node."""
        return [[rank for rank, node in enumerate(self.nodes) if node == lowest] for lowest in sorted(set(self.nodes))]


@dataclass(frozen=True)
class Check:
    """A check with its name in the table. run: collective; it raises the same HpcgnnError on every rank if the check cannot be
    made."""

    name: str
    run: Callable[[Job], Finding | None]

    def finding(self, job: Job) -> Finding | None:
        """The finding, which is the same on every rank; None if there is nothing to check. Collective."""
        try:
            return self.run(job)
        except HpcgnnError as error:
            if not error.agreed and job.world.size > 1:  # the other ranks do not know of it, so the job must end
                raise
            return Finding(self.name, "", BROKEN, str(error))


def by_rank(name: str, look: Callable[[Job], Fact], judge: Callable[[list[Fact], Job], Verdict | None]) -> Check:
    """A check of facts that every rank collects by itself and that are then judged together. ``look`` and ``judge`` are not
    collective; any exception that they raise becomes a finding."""

    def run(job: Job) -> Finding | None:
        fact: Fact = {}
        with guarded(job.world, f"look at {name}"):
            fact = look(job)
        facts = gathered(job.world, fact)
        _ = job.nodes  # collective, so not under the guard that follows
        found: list[Finding] = []
        with guarded(job.world, f"judge {name}"):
            verdict = judge(facts, job)
            found += [] if verdict is None else [of_problems(name, *verdict)]
        return found[0] if found else None

    return Check(name, run)


@contextmanager
def guarded(world: World, doing: str) -> Iterator[None]:
    """As :func:`~hpcgnn.world.world.raise_on_all_ranks`, but for any exception, whose sentence names the rank. Collective."""
    with raise_on_all_ranks(world, doing):
        try:
            yield
        except Exception as error:
            raise HpcgnnError(_sentence(error) + (f" (on rank {world.rank})" if world.size > 1 else "")) from error


def _sentence(error: Exception) -> str:
    if isinstance(error, HpcgnnError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {quoted(str(error))}"


def gathered(world: World, fact: Fact) -> list[Fact]:
    """The facts of all ranks, by rank. Collective; O(P) memory."""
    mine = np.frombuffer(json.dumps(fact).encode(), np.uint8)
    longest = int(world.allreduce(np.array([mine.size]), "max", "the facts of all ranks")[0])
    padded = np.full(longest, ord(" "), np.uint8)
    padded[: mine.size] = mine
    return [json.loads(row.tobytes()) for row in world.allgather(padded)]
