"""The interface of a section of the campaign: its description, and the outcomes of its cases."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RIGHT = "right"
REFUSED = "refused"
FAILED = "failed"
LEFT_OUT = "left out"
"""The end of a case:

right: with the expected result.
refused: with one sentence and exit code 1 or 2, as expected.
failed: in any other way. This is a defect.
left out: it was not run; ``said`` names the thing that the machine lacks.
"""
ENDS = (RIGHT, REFUSED, FAILED, LEFT_OUT)


@dataclass(frozen=True)
class Case:
    """One case. group: its row in the report. name: the name by which it can be run again, within the section. end: one of
    ``ENDS``. said: for a failure, a phrase about the defect; for a case that was left out, the reason; for a refusal, the
    sentence, if it is worth reading.
    """

    group: str
    name: str
    end: str
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Fact:
    """A number that the section has measured, with its unit, for the report."""

    name: str
    value: float | int | str
    unit: str = ""


@dataclass
class Session:
    """The arguments of a section.

    Attributes:
        seed: every random choice follows from it (:meth:`generator`).
        folder: an empty folder of the section, removed afterwards.
        short: whether this is the short form, with a few quick cases.
        deadline: of ``time.monotonic()``; no case is started after it.
        only: words, one of which must be in the name of a case to run; empty for all cases.
        facts: numbers that the section adds for the report.
    """

    seed: int
    folder: Path
    short: bool
    deadline: float
    only: tuple[str, ...] = ()
    facts: list[Fact] = field(default_factory=list)

    def generator(self, *names: object) -> np.random.Generator:
        """The random generator of the case with these names, which does not depend on the other cases that run."""
        digest = hashlib.sha256(repr((self.seed, *names)).encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little"))

    def wants(self, name: str) -> bool:
        """Return whether the case is to run: there is time, and its name contains one of the words."""
        return time.monotonic() < self.deadline and (not self.only or any(word in name for word in self.only))

    def has_time(self) -> bool:
        """Return whether another case may be started."""
        return time.monotonic() < self.deadline

    def new_folder(self, name: str) -> Path:
        """An empty folder for a case."""
        safe = "".join(letter if letter.isalnum() else "-" for letter in name)[:80]
        path = self.folder / safe
        number = 0
        while path.exists():
            number += 1
            path = self.folder / f"{safe}.{number}"
        path.mkdir(parents=True)
        return path

    def add_fact(self, name: str, value: Any, unit: str = "") -> None:
        """Add a number for the report."""
        self.facts.append(Fact(name, value, unit))


@dataclass(frozen=True)
class Section:
    """A section. name: of its file, and on the command line. title: its heading. about: a paragraph of the report about the
    cases and the definition of a failure. run: yields each case when it has ended. share: of the time budget, relative to the
    other sections.
    """

    name: str
    title: str
    about: str
    run: Callable[[Session], Iterator[Case]]
    share: float = 1.0
