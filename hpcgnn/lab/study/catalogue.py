"""The specifications that ship with the package, and TOML files whose errors name a line. Listing specifications imports neither
torch nor the code that checks runs."""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError

FOLDER = Path(__file__).parent / "specifications"


@dataclass(frozen=True)
class Outline:
    """A specification in short. runs: number of its runs."""

    name: str
    kind: str
    about: str
    runs: int


def shipped() -> dict[str, Path]:
    """The specifications that ship with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml")) if not path.stem.endswith(".targets")}


def find(spec: str) -> Path:
    """The file of a specification, given as a path or as the name of a shipped one. Raises HpcgnnError if there is none."""
    path = Path(spec)
    if path.suffix == ".toml" or path.exists():
        return path
    if spec not in shipped():
        raise HpcgnnError(f"there is no specification {spec}: give a TOML file, or one of {', '.join(shipped())}")
    return shipped()[spec]


def outline(path: Path) -> Outline:
    """The outline of a valid specification. Its runs are counted, and not checked as by specification.py: each configuration is
    the product of its axes, and each repeat and each seed runs all configurations."""
    values = Document(path).values
    rounds = values.get("repeats", 1) * len(values.get("seeds", [0]))
    configurations = [values["axes"] | table for table in values.get("configurations") or [{}]]
    numbers = ([len(each) for each in axes.values() if isinstance(each, list)] for axes in configurations)
    about, runs = one_line(values.get("about", "")), rounds * sum(map(math.prod, numbers))
    return Outline(values["name"], values["kind"], about, runs)


def one_line(about: str) -> str:
    """A text of several lines as one line."""
    return " ".join(about.split())


# -- TOML files: an error about a value should name its line, and tomllib does not tell it ----------------------------------

Place = tuple[str | int, ...]
T = TypeVar("T", bound=msgspec.Struct)


class Document:
    """A TOML file. Raises HpcgnnError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, typed.text_of(path)
        try:
            self.values = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise HpcgnnError(f"cannot read {path}: {error}") from error

    def refuse(self, place: Place, sentence: str) -> NoReturn:
        """Raise HpcgnnError with the line of a place, or of the innermost place around it that exists: the line with which the
        text begins to hold it."""
        while not _holds(self.values, place):
            place = place[:-1]
        lines, begins = self.text.split("\n"), 1
        for number in range(1, len(lines) + 1):
            with contextlib.suppress(tomllib.TOMLDecodeError):  # a value that extends over several lines
                if _holds(tomllib.loads("\n".join(lines[:number])), place):
                    break
                begins = number + 1
        raise HpcgnnError(f"{self.path}, line {begins}: {sentence}")

    def checked(self, value: Any, kind: type[T], place: Place, subject: str) -> T:
        """The value at a place as a ``kind``; refuses wrong types, and unknown keys in words that begin with ``subject``."""
        known = kind.__struct_fields__
        if isinstance(value, dict) and (unknown := [name for name in value if name not in known]):
            said = f"{subject} {unknown[0]}: there are {', '.join(known)}"
            self.refuse((*place, unknown[0]), said)
        if problem := typed.why_invalid(value, kind):
            names = re.findall(r"\w+", problem.partition(" ")[0])
            self.refuse((*place, *(int(name) if name.isdigit() else name for name in names)), problem)
        return typed.validated(value, kind, str(self.path))


def _holds(values: Any, place: Place) -> bool:
    """Return whether there is a value at a place: ``("axes", "bits")``, or, in a list, ``("configurations", 1, "bits")``."""
    for name in place:
        try:
            values = values[name]
        except (KeyError, IndexError, TypeError):
            return False
    return True
