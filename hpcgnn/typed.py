"""What is read from a file, or given by a program, held to a declared type; one sentence where it is not of it.

Types are declared with :mod:`msgspec`: a ``Struct`` beside the code that writes the file, with the ranges of its numbers. This
is the one place that turns what the library says into a sentence with the file, its line and the field.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from hpcgnn.errors import HpcgnnError

T = TypeVar("T")
MOST_INT, MOST_FLOAT = 2**63 - 1, sys.float_info.max

# A NaN keeps no bound, so these are finite as well.
Count = Annotated[int, Meta(ge=0, le=MOST_INT)]
Finite = Annotated[float, Meta(ge=-MOST_FLOAT, le=MOST_FLOAT)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST_FLOAT)]
MessageBits = Literal[1, 2, 4, 8, 16, 32]

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table of names and values",
    "null": "nothing",
    "Tensor": "a tensor",
}
_PLACE = re.compile(r" - at (`key` in )?`\$?\.?(.*)`$")
_BOUND = re.compile(r"(<=|<|>=|>) (\S+)$")
_MISSING = re.compile(r"Object missing required field `(.*)`")
# Ranks may be threads, and two threads that are the first to convert to a type crash the process: msgspec 0.22 makes what it
# knows of a type then.
_ONE_AT_A_TIME = threading.Lock()
_BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


def problem_of(value: Any, kind: Any) -> str:
    """What is wrong with ``value`` as a ``kind``, in words that begin with the field; nothing if it is one."""
    try:
        _converted(value, kind)
    except (msgspec.ValidationError, AttributeError) as error:  # the latter for a tensor where a table should be
        return _in_words(str(error))
    except UnicodeEncodeError:  # Python's way to hold bytes of file names that are no text
        return "it has bytes that are no text"
    except (RecursionError, OverflowError):
        return "it is nested too deeply, or a number is too large"
    return ""


def checked(value: Any, kind: type[T], where: str) -> T:
    """``value`` as a ``kind``.

    Raises:
        HpcgnnError: where it is none; the sentence begins with ``where``, its file.
    """
    problem = problem_of(value, kind)
    if problem:
        raise HpcgnnError(f"{where}: {problem}")
    return _converted(value, kind)


def _converted(value: Any, kind: type[T]) -> T:
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)


def read_json(path: Path, kind: type[T]) -> T:
    """The JSON file ``path`` as a ``kind``.

    Raises:
        HpcgnnError: where it cannot be read, or is none.
    """
    return checked(_parsed(text_of(path), str(path)), kind, str(path))


def read_lines(path: Path, kind: type) -> list[dict[str, Any]]:
    """The lines of a file with a JSON object a line, each a ``kind``; what a killed run has left of one more is left out.

    Raises:
        HpcgnnError: naming the line and its field.
    """
    found = []
    for number, line in enumerate(text_of(path).splitlines(keepends=True), start=1):
        if line.endswith("\n"):
            where = f"{path}, line {number}"
            value = _parsed(line, where)
            checked(value, kind, where)
            found.append(value)
    return found


def check_epochs(lines: list[dict[str, Any]], path: Path) -> None:
    """Raise HpcgnnError unless the lines' epochs ascend."""
    for number, (one, other) in enumerate(pairwise(lines), start=2):
        if one["epoch"] >= other["epoch"]:
            raise HpcgnnError(f"{path}, line {number}: epoch {other['epoch']} comes after epoch {one['epoch']}")


def text_of(path: Path, errors: str = "strict") -> str:
    """What is in a text file. errors: as Python's, for bytes that are no UTF-8.

    Raises:
        HpcgnnError: where it cannot be read.
    """
    try:
        is_odd = (
            path.exists() and not path.is_file() and not path.is_dir()
        )  # a device may have no end, a pipe no beginning
        if is_odd and path.parent != Path("/dev/fd"):  # which is a shell's <(...)
            raise HpcgnnError(f"cannot read {path}: it is not a file")
        with path.open(encoding="utf-8", errors=errors) as stream:
            return stream.read()
    except OSError as error:
        raise HpcgnnError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise HpcgnnError(f"cannot read {path}: it is no text in UTF-8 (byte {error.start})") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)  # msgspec's own takes no NaN and no infinity, which Python's writes
    except (ValueError, RecursionError) as error:
        raise HpcgnnError(f"{where}: it is no JSON ({error})") from error


@cache
def _words_of(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, f"a {kind}") for kind in kinds.split(" | "))


def _in_words(said: str) -> str:
    """``epoch must be a whole number, not a text`` of "Expected `int`, got `str` - at `$.epoch`"."""
    found = _PLACE.search(said)
    place = said[: found.start()] if found else said
    field = (found[2] or "it") if found else "it"
    field = f"a name in {field}" if found and found[1] else field
    if missing := _MISSING.match(place):
        return f"{missing[1]} is missing" + ("" if field == "it" else f" in {field}")
    if place.startswith("Invalid enum value "):
        return f"{field} cannot be {place.removeprefix('Invalid enum value ')}"
    quoted = re.findall(r"`([^`]*)`", place)
    if not place.startswith("Expected") or not quoted:
        return f"{field} is of another kind than it should be"
    if bound := _BOUND.search(place):
        return f"{field} must be {_words_of(quoted[0])} {_bounded(*bound.groups())}"
    if len(quoted) > 1:
        return f"{field} must be {_words_of(quoted[0])}, not {_words_of(quoted[1])}"
    return f"{field} must be {place.removeprefix('Expected ').replace('`', '')}"


def _bounded(sign: str, bound: str) -> str:
    if abs(float(bound)) in (MOST_FLOAT, float(MOST_INT)):
        return "that is finite" if "e" in bound else "below 2^63"
    return f"{_BOUNDS[sign]} {float(bound):g}"
