"""Lines of text files, gzipped or not, in blocks of bounded size."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_BLOCK_CHARACTERS = 1 << 24
_GZIP_MAGIC = b"\x1f\x8b"


def open_text(path: Path) -> TextIO:
    """Open ``path`` for reading as text; gzip is told by its first bytes, not by its name."""
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8")


def blocks(file: TextIO, size: int = _BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """The lines of ``file``, about ``size`` characters at a time."""
    while lines := file.readlines(size):
        yield lines
