"""The specifications that ship with the package. Listing them imports neither torch nor the code that checks runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study.toml_lines import parsed

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
    """The outline of a valid specification. Its runs are counted, and not checked as by specification.py."""
    _, values = parsed(path)
    return Outline(values["name"], values["kind"], one_line(values.get("about", "")), _number_of_runs(values))


def one_line(about: str) -> str:
    """A text of several lines as one line."""
    return " ".join(about.split())


def _number_of_runs(values: Mapping[str, Any]) -> int:
    """Each configuration is the product of its axes, and each repeat and each seed runs all configurations."""
    rounds = values.get("repeats", 1) * len(values.get("seeds", [0]))
    axes = [values["axes"] | table for table in values.get("configurations", [])] or [values["axes"]]
    return rounds * sum(math.prod(_number_of_values(value) for value in each.values()) for each in axes)


def _number_of_values(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1
