"""Reading of files that may be compressed, and of lines of text files in blocks of bounded size."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.signatures import BZIP2, GZIP, OTHER_COMPRESSED, UTF8_MARK, UTF16_MARKS, XZ, begins_with

LONGEST_LINE = 1 << 16  # characters of a line in a file with one edge on each line
_FIRST_CHARACTERS, _BLOCK_CHARACTERS = 1 << 20, 1 << 24
_MODULES = {GZIP: "gzip", BZIP2: "bz2", XZ: "lzma"}  # imported on use: a Python may be built without the last two


def open_unpacked(path: Path) -> Any:
    """Open ``path`` for reading its bytes, plain or compressed by gzip, bzip2 or xz, whatever its name is.

    Raises:
        HpcgnnError: for files that another program has compressed.
    """
    for signature, (name, command) in OTHER_COMPRESSED.items():
        if begins_with(path, signature):
            raise HpcgnnError(
                f"{path} is compressed by {name}: unpack it first (`{command} FILE`), or compress it by gzip"
            )
    module = next((name for signature, name in _MODULES.items() if begins_with(path, signature)), "io")
    return import_module(module).open(path, "rb")


def open_text(path: Path) -> TextIO:
    """Open ``path`` for reading as text in UTF-8, with or without a byte order mark, compressed or not.

    Raises:
        HpcgnnError: for text in UTF-16, and for files that another program has compressed.
    """
    stream = open_unpacked(path)
    try:
        first = stream.peek(len(UTF8_MARK))
        if first.startswith(UTF16_MARKS):
            raise HpcgnnError(f"{path} is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8 FILE`")
        if first.startswith(UTF8_MARK):
            stream.read(len(UTF8_MARK))
    except BaseException:
        stream.close()
        raise
    return io.TextIOWrapper(stream, encoding="utf-8")


def blocks(file: TextIO, longest: int, size: int = _BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """The lines of ``file``, without their ends, in blocks of at most about ``size`` characters.

    Raises ``ValueError`` for a line of more than about ``longest`` characters. A small compressed file may have a line of any
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
