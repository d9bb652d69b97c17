"""Checks of values from files and programs against types that are declared with :mod:`msgspec`. Only this module turns the
library's messages into sentences with the file, its line and the field."""

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

from hpcgnn.base.errors import HpcgnnError

T = TypeVar("T")
MOST_INT, MOST_FLOAT = 2**63 - 1, sys.float_info.max

# A NaN is never within bounds, so these are finite, too.
Count = Annotated[int, Meta(ge=0, le=MOST_INT)]
Finite = Annotated[float, Meta(ge=-MOST_FLOAT, le=MOST_FLOAT)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST_FLOAT)]
MessageBits = Literal[1, 2, 4, 8, 16, 32]
QUANTIZED_BITS, INT8_BITS = (1, 2, 4, 8), 8
MESSAGE_BITS = (*QUANTIZED_BITS, 16, 32)  # bits of a value in a message: 16 bits are bfloat16, 32 bits are float32

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
# Ranks may be threads. Two threads that are the first to convert to a type, at the same time, crash the process, because
# msgspec 0.22 then prepares its data about the type.
_ONE_AT_A_TIME = threading.Lock()
_BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


def why_invalid(value: Any, kind: Any) -> str:
    """A phrase about the field by which ``value`` is not a ``kind``, beginning with its name; empty if it is one."""
    try:
        _converted(value, kind)
    except (msgspec.ValidationError, AttributeError) as error:  # AttributeError: a tensor in place of a table
        return _in_words(str(error))
    except UnicodeEncodeError:  # surrogates, by which Python represents bytes of file names that are not UTF-8
        return "it has bytes that are not text"
    except (RecursionError, OverflowError):
        return "it is nested too deeply, or a number is too large"
    return ""


def validated(value: Any, kind: type[T], where: str) -> T:
    """``value`` as a ``kind``. Raises HpcgnnError where it is not one; the sentence begins with ``where``, the file."""
    if problem := why_invalid(value, kind):
        raise HpcgnnError(f"{where}: {problem}")
    return _converted(value, kind)


def _converted(value: Any, kind: type[T]) -> T:
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)


def read_json(path: Path, kind: type[T]) -> T:
    """The JSON file ``path`` as a ``kind``. Raises HpcgnnError where it cannot be read, or is not one."""
    return validated(_parsed(text_of(path), str(path)), kind, str(path))


def read_lines(path: Path, kind: type) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object on each line. A last line without its end, which a killed run can leave, is
    skipped. Raises HpcgnnError for the first line that is not a ``kind``."""
    found = []
    for number, line in enumerate(text_of(path).splitlines(keepends=True), start=1):
        if line.endswith("\n"):
            where = f"{path}, line {number}"
            value = _parsed(line, where)
            validated(value, kind, where)
            found.append(value)
    return found


def check_epochs(lines: list[dict[str, Any]], path: Path) -> None:
    """Raise HpcgnnError unless the field ``epoch`` rises from line to line."""
    for number, (one, other) in enumerate(pairwise(lines), start=2):
        if one["epoch"] >= other["epoch"]:
            raise HpcgnnError(f"{path}, line {number}: epoch {other['epoch']} comes after epoch {one['epoch']}")


def text_of(path: Path, errors: str = "strict") -> str:
    """The text of a file, without a byte order mark. errors: Python's name of a treatment of bytes that are not UTF-8, ``strict``
    to refuse them. Raises HpcgnnError."""
    try:
        # Reading a device may never end, and opening a pipe may wait forever.
        is_odd = path.exists() and not path.is_file() and not path.is_dir()
        if is_odd and path.parent != Path("/dev/fd"):  # a shell passes <(...) as a file there
            raise HpcgnnError(f"cannot read {path}: it is not a file")
        with path.open(encoding="utf-8-sig", errors=errors) as stream:
            return stream.read()
    except OSError as error:
        raise HpcgnnError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        is_wide = bytes(error.object[:2]) in (b"\xff\xfe", b"\xfe\xff")
        told = "in UTF-16, not in UTF-8: save it as UTF-8" if is_wide else f"not text in UTF-8 (byte {error.start})"
        raise HpcgnnError(f"cannot read {path}: it is {told}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)  # msgspec's parser refuses NaN and infinity, which json.dumps writes
    except (ValueError, RecursionError) as error:
        raise HpcgnnError(f"{where}: it is not JSON ({error})") from error


@cache
def _words_of(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, f"a {kind}") for kind in kinds.split(" | "))


def _in_words(said: str) -> str:
    """``epoch must be a whole number, not a text`` from msgspec's "Expected `int`, got `str` - at `$.epoch`"."""
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
        return f"{field} has a wrong type"
    if bound := _BOUND.search(place):
        return f"{field} must be {_words_of(quoted[0])} {_bounded(*bound.groups())}"
    if len(quoted) > 1:
        return f"{field} must be {_words_of(quoted[0])}, not {_words_of(quoted[1])}"
    return f"{field} must be {place.removeprefix('Expected ').replace('`', '')}"


def _bounded(sign: str, bound: str) -> str:
    if abs(float(bound)) in (MOST_FLOAT, float(MOST_INT)):
        return "that is finite" if "e" in bound else "below 2^63"
    return f"{_BOUNDS[sign]} {float(bound):g}"
