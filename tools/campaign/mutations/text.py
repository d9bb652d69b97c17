"""Mutators of text and of bytes. The meaning of a changed text follows from :mod:`oracles`."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

from campaign.mutations.mutation import FREE, REFUSE, SAME, Mutation, Mutator, pick

_WORDS = (
    "-1", "0", "1", "2000000000", "99999999999999999999", "9223372036854775807", "1000000000000000", "1e3", "1.5", "nan", "inf",
    "-inf", "1e400", "x", "\u00b2", "\u0663", "0x10", "1_000", "+3", "\0", "5 5 5 5", "", "#", "%", ",", "'1'", '"1"', "1" * 5000,
)  # fmt: skip
_JUNK = (
    b"\xff\xfe",
    b"\0" * 8,
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"\r",
    b"\n\n",
    b" ",
    b"\xc2\xa0",
    b"%",
    b"a" * 70_000,
)


def of_text(oracle: Callable[[bytes], str | None]) -> list[Mutator]:
    """Mutators of a text whose meaning ``oracle`` determines."""

    def asked(change: Callable[[bytes, np.random.Generator], tuple[bytes, str]]) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            content = path.read_bytes()
            is_zipped = content[:2] == b"\x1f\x8b"
            changed, what = change(gzip.decompress(content) if is_zipped else content, rng)
            path.write_bytes(gzip.compress(changed) if is_zipped else changed)
            # A file that begins like gzip is read as gzip.
            expects = REFUSE if changed[:2] == b"\x1f\x8b" else oracle(changed) or REFUSE
            return Mutation(what, expects)

        return mutate

    return [asked(change) for change in (_flip, _flip, _word, _word, _word, _word, _line, _line, _junk, _cut)]


def of_words() -> list[Mutator]:
    """Mutators of a text of lines and words for which there is no oracle."""

    def free(change: Callable[[bytes, np.random.Generator], tuple[bytes, str]]) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            changed, what = change(path.read_bytes(), rng)
            path.write_bytes(changed)
            return Mutation(what, FREE)

        return mutate

    return [free(change) for change in (_word, _word, _word, _line, _junk)]


def of_bytes(*, checked: bool = True) -> list[Mutator]:
    """Mutators of any file. checked: the file has checksums, so that an accepted file must give the original result."""

    def at_border(change: Callable[[bytes, np.random.Generator], tuple[bytes, str]]) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            changed, what = change(path.read_bytes(), rng)
            path.write_bytes(changed)
            return Mutation(what, SAME if checked else FREE, "bytes")

        return mutate

    return [at_border(change) for change in (_flip, _flip, _flip, _several, _cut, _junk, _zeros, _repeat)]


def _flip(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    place, bit = int(rng.integers(len(content))), int(rng.integers(8))
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed), f"bit {bit} of byte {place} flipped"


def _several(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    place, count = int(rng.integers(len(content))), int(rng.integers(2, 65))
    junk = rng.bytes(count)
    return content[:place] + junk + content[place + count :], f"{count} bytes at {place} replaced"


def _cut(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    left = int(rng.integers(len(content)))
    return content[:left], f"cut to {left} bytes"


def _zeros(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    place = int(rng.integers(len(content)))
    count = min(int(rng.integers(1, 4097)), len(content) - place)
    return content[:place] + bytes(count) + content[place + count :], f"{count} bytes at {place} are zeros"


def _repeat(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    place, count = int(rng.integers(len(content))), int(rng.integers(1, 513))
    return content[: place + count] + content[place:], f"{count} bytes at {place} are there twice"


def _junk(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    junk = pick(rng, _JUNK)
    place = int(pick(rng, (0, len(content), int(rng.integers(len(content))))))
    return content[:place] + junk + content[place:], f"{junk[:8]!r} ({len(junk)} bytes) put in at {place}"


def _word(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    lines = content.decode().split("\n")
    row = int(rng.integers(len(lines)))
    words = lines[row].split(" ")
    column, word = int(rng.integers(len(words))), pick(rng, _WORDS)
    what = f"line {row + 1}: {words[column]!r} is {word[:24]!r}"
    words[column] = word
    return "\n".join([*lines[:row], " ".join(words), *lines[row + 1 :]]).encode(), what


def _line(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    lines = content.decode().split("\n")
    row = int(rng.integers(len(lines)))
    how = pick(rng, ("dropped", "there twice", "joined with the next one", "moved to the end"))
    line = lines[row]
    if how == "there twice":
        lines.insert(row, line)
    else:
        del lines[row]
        if how == "joined with the next one" and row < len(lines):
            lines[row] = f"{line} {lines[row]}"
        elif how == "moved to the end":
            lines.append(line)
    return "\n".join(lines).encode(), f"line {row + 1} {how}"


CHANGES = (_word, _word, _line, _junk, _cut)
"""Return the changed text and a description of the change; for a text that is not UTF-8, raise ValueError."""
