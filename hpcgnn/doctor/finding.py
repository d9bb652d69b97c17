"""A finding of a check, and the report that all findings make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

OK, WORTH_CHANGING, BROKEN = "ok", "worth changing", "broken"
STATES = (OK, WORTH_CHANGING, BROKEN)  # the worst one last


@dataclass(frozen=True)
class Finding:
    """check: its name. found: a few words about the machine. sentence: the change to make, or more about it; may be empty."""

    check: str
    found: str
    state: str = OK
    sentence: str = ""


@dataclass(frozen=True)
class Report:
    """All findings. mpi: the library in one line, empty where none starts. ranks: so many were looked at, on so many nodes."""

    hpcgnn: str
    mpi: str
    ranks: int
    nodes: int
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """The worst one."""
        return max((each.state for each in self.findings), key=STATES.index, default=OK)

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        facts = {"hpcgnn": self.hpcgnn, "mpi": self.mpi, "ranks": self.ranks, "nodes": self.nodes, "state": self.state}
        return facts | {"findings": [asdict(each) for each in self.findings]}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Report:
        """From an object that :meth:`data` has made."""
        findings = tuple(Finding(**each) for each in data["findings"])
        return cls(data["hpcgnn"], data["mpi"], data["ranks"], data["nodes"], findings)


def of_problems(check: str, found: str, problems: Iterable[str]) -> Finding:
    """Something worth changing where there is a problem: the first one, which is the one to begin with."""
    first = next(iter(problems), "")
    return Finding(check, found, WORTH_CHANGING if first else OK, first)


def counted(count: int | str, noun: str) -> str:
    """``counted(2, "core") == "2 cores"``; of a range, ``counted("1 to 2", "core")``."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def some_ranks(ranks: Iterable[int], most: int = 6) -> str:
    """``some_ranks([0, 1, 2]) == "ranks 0, 1 and 2"``; of many, the first ones."""
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > most:
        return f"{len(numbers)} ranks ({', '.join(numbers[: most - 1])}, ...)"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
