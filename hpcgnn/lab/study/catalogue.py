"""The specifications that ship with the package, and TOML files whose errors name a line. Listing specifications imports neither
torch nor the code that checks runs."""

from __future__ import annotations

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

_NAME = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_NAMES})\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(rf"\s*({_NAMES})\s*=(.*)$")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|' + r"'[^']*'")


class Document:
    """A TOML file. Raises HpcgnnError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, typed.text_of(path)
        try:
            self.values = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise HpcgnnError(f"cannot read {path}: {error}") from error

    def refuse(self, place: Place, sentence: str) -> NoReturn:
        """Raise HpcgnnError with the line of a place, or of the innermost place around it that begins a line."""
        lines = lines_of(self.text)
        while place and place not in lines:
            place = place[:-1]
        raise HpcgnnError(f"{self.path}, line {lines.get(place, 1)}: {sentence}")

    def checked(self, value: Any, kind: type[T], place: Place, subject: str) -> T:
        """The value at a place as a ``kind``; refuses unknown keys, of which ``subject`` has none, and wrong types."""
        known = kind.__struct_fields__
        if isinstance(value, dict) and (unknown := [name for name in value if name not in known]):
            said = f"{subject} no key {unknown[0]}: the keys are {', '.join(known)}"
            self.refuse((*place, unknown[0]), said)
        if problem := typed.why_invalid(value, kind):
            names = re.findall(r"\w+", problem.partition(" ")[0])
            self.refuse((*place, *(int(name) if name.isdigit() else name for name in names)), problem)
        return typed.validated(value, kind, str(self.path))


def lines_of(text: str) -> dict[Place, int]:
    """The line, from 1, of each table and key that begins a line. Keys are ``("axes", "bits")``, or, in a list of tables,
    ``("configurations", 1, "bits")`` with the number of the table, from 0. The text must be TOML, without multi-line strings."""
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    depth = 0  # nesting of lists and tables that extend over several lines
    for number, line in enumerate(text.splitlines(), start=1):
        value = line
        if depth == 0 and (header := _HEADER.match(line)):
            table = _names(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
            continue
        if depth == 0 and (key := _KEY.match(line)):
            found.setdefault((*table, *_names(key[1])), number)
            value = key[2]
        bare = _STRING.sub("", value).partition("#")[0]
        depth += sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))
    return found


def _names(text: str) -> Place:
    return tuple(name.strip("\"'") for name in re.findall(_NAME, text))
