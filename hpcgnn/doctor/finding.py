"""A finding of a check, and the report that all findings make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

OK, WORTH_CHANGING, BROKEN = "ok", "worth changing", "broken"
STATES = (OK, WORTH_CHANGING, BROKEN)  # from the best to the worst


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    check: name of the check. found: a few words about the machine. state: one of :data:`STATES`. sentence: the suggested change,
    or more information; may be empty.
    """

    check: str
    found: str
    state: str = OK
    sentence: str = ""


@dataclass(frozen=True)
class Report:
    """All findings.

    hpcgnn: version. mpi: the MPI library in one line; empty if none starts. ranks, nodes: the number of ranks that were checked,
    and of their nodes.
    """

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
        facts = {"hpcgnn": self.hpcgnn, "mpi": self.mpi, "ranks": self.ranks, "nodes": self.nodes, "state": self.state}
        return facts | {"findings": [asdict(each) for each in self.findings]}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Report:
        """The inverse of :meth:`data`."""
        findings = tuple(Finding(**each) for each in data["findings"])
        return cls(data["hpcgnn"], data["mpi"], data["ranks"], data["nodes"], findings)


def of_problems(check: str, found: str, problems: Iterable[str]) -> Finding:
    """A finding with the first of the ``problems``, which is worth changing; without problems it is ok."""
    first = next(iter(problems), "")
    return Finding(check, found, WORTH_CHANGING if first else OK, first)


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
