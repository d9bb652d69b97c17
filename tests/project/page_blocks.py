"""The fenced blocks of README and of the pages in docs/: their kinds, the files they write, and a page as one shell script.

bash      commands that a test runs, in order, from the top of the page, in an empty folder
console   commands for another machine: several nodes, GPUs, a network, a batch system; a test looks for options that do not exist
text      output
others    a program or a file; where its first line is a comment with a file's name, the block is written to that file
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from checkout import line_at, text_of
from rank_pool import ROOT

COMMANDS = {"bash", "console"}
KINDS = COMMANDS | {"text", "python", "toml", "cpp", "json", "html", "yaml"}
NEEDS = {"virtual hosts", "slurm"}

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:#|//) ([\w./-]+\.\w+)\n")
_NEEDS = re.compile(r"^<!-- needs: (.+) -->$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its kind, its text without the fences, and the line of its first fence."""

    kind: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block is written to; empty for a block that is only read."""
        named = None if self.kind in COMMANDS | {"text"} else _NAMED.match(self.text)
        return named[1] if named else ""


def pages() -> list[Path]:
    """README and its like, and all pages that people write: reports of studies are made from records."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    folders = [ROOT / "examples" / "README.md", ROOT / "packaging" / "README.md"]
    return [*beside, *folders, *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "studies" not in page.parts)]


@functools.cache
def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, from its top."""
    text = text_of(page)
    return [Block(found[1], found[2], line_at(text, found.start())) for found in _FENCED.finditer(text)]


@functools.cache
def without_blocks(page: Path) -> str:
    """The text of a page, with empty lines in place of its fenced blocks."""
    return _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text_of(page))


def needs(page: Path) -> str:
    """The part of a machine that a page's commands need beside MPI: one of ``NEEDS``, or nothing."""
    found = _NEEDS.search(text_of(page))
    return found[1] if found else ""


def script_of(page: Path) -> str:
    """A page as one shell script, which writes its files and runs its commands."""
    return "".join(_steps(page))


def _steps(page: Path) -> Iterator[str]:
    for block in blocks(page):
        if block.kind == "bash":
            yield block.text
        elif block.file:
            path = PurePosixPath(block.file)
            assert not {"..", path.root} & {*path.parts}, f"{page} writes outside of its folder: {path}"
            yield f"mkdir -p {shlex.quote(str(path.parent))} && printf %s {shlex.quote(block.text)} > {shlex.quote(str(path))}\n"
