"""Reading of lines of text files, gzipped or not, in blocks of bounded size."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hpcgnn.data.signatures import GZIP, begins_with

LONGEST_LINE = 1 << 16  # characters of a line in a file with one edge on each line
_FIRST_CHARACTERS, _BLOCK_CHARACTERS = 1 << 20, 1 << 24


def open_text(path: Path) -> TextIO:
    """Open ``path``, gzipped or not, for reading as text."""
    return gzip.open(path, "rt", encoding="utf-8") if begins_with(path, GZIP) else path.open(encoding="utf-8")


def blocks(file: TextIO, longest: int, size: int = _BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """The lines of ``file``, without their ends, in blocks of at most about ``size`` characters.

    Raises ``ValueError`` for a line of more than about ``longest`` characters. A small gzipped file may have a line of any
    length, so the first blocks are smaller.
    """
    rest, most, size = "", size, min(size, _FIRST_CHARACTERS)
    while text := file.read(size):
        *lines, rest = (rest + text).split("\n")
        if len(rest) > max(longest, size):
            raise ValueError(f"a line has more than {longest:,} characters")
        if lines:
            yield lines
        size = min(2 * size, most)
    if rest:
        yield [rest]
