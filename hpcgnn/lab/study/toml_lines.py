"""The lines of values in a TOML file: an error about a value should name its line, and tomllib does not tell it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError

Place = tuple[str | int, ...]

_NAME = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_NAMES})\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(rf"\s*({_NAMES})\s*=(.*)$")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|' + r"'[^']*'")


def parsed(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and its values. Raises HpcgnnError if it cannot be read."""
    text = typed.text_of(path)
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HpcgnnError(f"cannot read {path}: {error}") from error


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


def line_of(lines: dict[Place, int], place: Place) -> int:
    """The line of a place, or of the innermost known place that contains it; 1 if none is known."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def _names(text: str) -> Place:
    return tuple(name.strip("\"'") for name in re.findall(_NAME, text))
