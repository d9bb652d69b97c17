"""Mutators of JSON lines, JSON and TOML, which have types but no checksums. The types in the original file are the schema."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from campaign.mutations.mutation import FREE, REFUSE, Mutation, Mutator, pick

_OTHERS: tuple[Any, ...] = (
    "text",
    "",
    2.5,
    -1,
    10**30,
    0,
    True,
    None,
    [],
    [1, 2],
    {},
    {"a": 1},
    math.nan,
    math.inf,
    [[]],
)
_OTHERS_IN_TOML = (
    *(other for other in _OTHERS if other is not None),
    "x" * 5000,
    "../..",
    "\n",
    "1e400",
    10**18,
    -0.0,
    1e300,
)
_RAW_LINES = (
    b"5",
    b'"text"',
    b"[1, 2]",
    b"null",
    b"{}",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"epoch": 1e999}',
    b"\0",
    b"NaN",
    b"true",
)


def of_lines(*, needed: tuple[str, ...]) -> list[Mutator]:
    """Mutators of a file with a JSON object on each line. needed: fields that every line must have."""

    def value(path: Path, rng: np.random.Generator) -> Mutation:
        lines = _lines(path)
        row = int(rng.integers(len(lines)))
        line = json.loads(lines[row])
        key = str(pick(rng, [*sorted(line), *needed]))
        what, expects = _other(line, key, rng, needed)
        lines[row] = json.dumps(line).encode()
        _write(path, lines)
        return Mutation(f"line {row + 1}: {what}", expects, key)

    def raw(path: Path, rng: np.random.Generator) -> Mutation:
        lines = _lines(path)
        row, junk = int(rng.integers(len(lines))), bytes(pick(rng, _RAW_LINES))  # type: ignore[call-overload]
        lines[row] = junk
        _write(path, lines)
        return Mutation(f"line {row + 1} is {junk[:20]!r}", REFUSE)

    def dropped(path: Path, rng: np.random.Generator) -> Mutation:
        lines = _lines(path)
        row = int(rng.integers(len(lines)))
        del lines[row]
        _write(path, lines)
        return Mutation(f"line {row + 1} dropped", FREE)

    return [value, value, value, value, raw, raw, dropped, _flipped(_types_of_lines)]


def of_json(*, needed: tuple[str, ...]) -> list[Mutator]:
    """Mutators of a file with one JSON object whose values are objects of numbers."""

    def value(path: Path, rng: np.random.Generator) -> Mutation:
        whole = json.loads(path.read_text())
        name = str(pick(rng, sorted(whole)))
        inner = whole[name] if isinstance(whole[name], dict) and whole[name] and rng.integers(2) else whole
        key = str(pick(rng, sorted(inner)))
        what, expects = _other(inner, key, rng, needed)
        path.write_text(json.dumps(whole))
        return Mutation(what, expects, key)

    def raw(path: Path, rng: np.random.Generator) -> Mutation:
        junk = bytes(pick(rng, _RAW_LINES))  # type: ignore[call-overload]
        path.write_bytes(junk)
        return Mutation(f"the file is {junk[:20]!r}", REFUSE)

    return [value, value, value, raw, _flipped(lambda content: [json.loads(content)])]


def of_toml() -> list[Mutator]:
    """Mutators of a file of settings."""

    def value(path: Path, rng: np.random.Generator) -> Mutation:
        settings = tomllib.loads(path.read_text())
        key = str(pick(rng, sorted(settings)))
        others = [other for other in _OTHERS if other is not None]
        other: Any = pick(rng, [*others, "nan", "x" * 100_000, 10**18, [[1], {"a": []}]])
        before, settings[key] = settings[key], other
        path.write_text(tomli_w.dumps(settings))
        return Mutation(f"{key} = {str(other)[:20]!r}, was {before!r}", _of_setting(before, other), key)

    def unknown(path: Path, rng: np.random.Generator) -> Mutation:
        name = str(
            pick(rng, ("epoch", "learning_rate", "", "a b", "\u00e9", "resume", "out", "config", "quiet", "help"))
        )
        settings = tomllib.loads(path.read_text()) | {name: 1}
        path.write_text(tomli_w.dumps(settings))
        return Mutation(f"a setting {name!r}", FREE if name in ("resume", "out", "config", "quiet") else REFUSE, name)

    def raw(path: Path, rng: np.random.Generator) -> Mutation:
        junk = bytes(
            pick(
                rng,
                (b"\xff\xfe", b"[[", b"a = ", b"=", b"\0", b"[a]\n[a]\n", b"a = " + b"[" * 100_000, b"hidden = {}\n"),
            )
        )  # type: ignore[call-overload]
        content = path.read_bytes()
        path.write_bytes(content + b"\n" + junk if rng.integers(2) else junk + b"\n" + content)
        return Mutation(f"{junk[:20]!r} put in", REFUSE)

    def values(content: bytes) -> list[Any]:
        return [tomllib.loads(content.decode(errors="surrogateescape"))]  # names of files may be any bytes

    return [value, value, value, value, unknown, raw, _flipped(values)]


def of_nested_toml() -> list[Mutator]:
    """Mutators of any nested value in a TOML file; an accepted file may have any result."""
    return [_nested(lambda text: tomllib.loads(text), lambda whole: tomli_w.dumps(whole), _OTHERS_IN_TOML)]


def of_nested_json() -> list[Mutator]:
    """Mutators of any nested value in a JSON file, or in one line of a file with a JSON value on each line."""

    def of_line(path: Path, rng: np.random.Generator) -> Mutation:
        lines = _lines(path)
        row = int(rng.integers(len(lines)))
        try:
            whole, rows = json.loads(lines[row]), True
        except ValueError:
            whole, rows = json.loads(path.read_text()), False
        what = _change_somewhere(whole, _OTHERS, rng)
        if rows:
            lines[row] = json.dumps(whole).encode()
            _write(path, lines)
        else:
            path.write_text(json.dumps(whole))
        return Mutation(f"line {row + 1}: {what}" if rows else what, FREE)

    return [of_line]


def _nested(load: Callable[[str], Any], dump: Callable[[Any], str], others: tuple[Any, ...]) -> Mutator:
    def mutate(path: Path, rng: np.random.Generator) -> Mutation:
        whole = load(path.read_text())
        what = _change_somewhere(whole, others, rng)
        path.write_text(dump(whole))
        return Mutation(what, FREE)

    return mutate


def _change_somewhere(whole: Any, others: tuple[Any, ...], rng: np.random.Generator) -> str:
    """Drop a value of a list or a dictionary, or replace it."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            visit(inner)

    visit(whole)
    if not places:
        return "nothing changed"
    holder, key = pick(rng, places)  # type: ignore[misc]
    if rng.integers(5) == 0:
        del holder[key]
        return f"{key} dropped"
    before, other = holder[key], pick(rng, others)
    holder[key] = [before, other] if rng.integers(8) == 0 else other
    return f"{key} = {str(holder[key])[:24]!r}, was {str(before)[:24]!r}"


def _of_setting(before: Any, other: Any) -> str:
    """The expected outcome for a setting of another type. Within the type, limits decide, which only the program knows."""
    if isinstance(other, list | dict):
        return FREE if isinstance(before, list) and other else REFUSE
    if isinstance(before, bool) or isinstance(other, bool):
        return REFUSE if isinstance(before, bool) != isinstance(other, bool) and not isinstance(before, str) else FREE
    if isinstance(before, int | float) and isinstance(other, str):
        return REFUSE if other != "nan" else FREE
    if isinstance(before, int) and isinstance(other, float):
        return REFUSE
    if isinstance(before, float) and isinstance(other, float) and not math.isfinite(other):
        return REFUSE
    return FREE


def _other(line: dict[str, Any], key: str, rng: np.random.Generator, needed: tuple[str, ...]) -> tuple[str, str]:
    before = line[key]
    if rng.integers(5) == 0:
        del line[key]
        return f"{key} dropped", REFUSE if key in needed else FREE
    line[key] = other = pick(rng, _OTHERS)
    return f"{key} = {other!r}, was {str(before)[:20]}", FREE if _fits(before, other) else REFUSE


def _fits(before: Any, other: Any) -> bool:
    """Return whether one value may replace the other."""
    if isinstance(before, bool) or isinstance(other, bool):
        return isinstance(before, bool) and isinstance(other, bool)
    if isinstance(other, float) and not math.isfinite(other):
        return False
    if before is None or isinstance(before, float):  # a number that may not have been measured
        return other is None or isinstance(other, int | float)
    if isinstance(before, int):
        return isinstance(other, int) and other >= 0 and other < 2**62
    return isinstance(other, type(before))


def _alike(before: Any, after: Any) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_alike(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return all(_alike(before[0], other) for other in after) if before else not after
    return _fits(before, after)


def _flipped(parse: Callable[[bytes], list[Any]]) -> Mutator:
    """Flip a bit. If the result is no such file any more, it must be refused; if it has the same types, it may be accepted with
    its new values.
    """

    def mutate(path: Path, rng: np.random.Generator) -> Mutation:
        content = bytearray(path.read_bytes())
        before = parse(bytes(content))
        place, bit = int(rng.integers(len(content))), int(rng.integers(8))
        content[place] ^= 1 << bit
        path.write_bytes(content)
        what = f"bit {bit} of byte {place} flipped"
        try:
            after = parse(bytes(content))
        except (ValueError, RecursionError):
            return Mutation(what, REFUSE)
        renamed = len(before) == len(after) and any(map(_is_renamed, before, after))
        # A renamed field may be one that is optional.
        return Mutation(what, FREE if renamed or len(before) != len(after) or _alike(before, after) else REFUSE)

    return mutate


def _is_renamed(before: Any, after: Any) -> bool:
    """Return whether a field, at any depth, has another name."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() != after.keys() or any(_is_renamed(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and any(map(_is_renamed, before, after))
    return False


def _types_of_lines(content: bytes) -> list[Any]:
    # A last line without a line end counts as incomplete.
    return [json.loads(line) for line in content.decode().splitlines(keepends=True) if line.endswith("\n")]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def _write(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
