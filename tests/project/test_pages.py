"""README and the pages in docs/: short enough, without a broken link, with no command or option that does not exist; the site."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from checkout import assert_none, line_at, place, text_of
from page_blocks import COMMANDS, KINDS, NEEDS, blocks, needs, pages, without_blocks
from rank_pool import ROOT

from hpcgnn.cli.main import cli

WRITTEN = pages()
PAGES = [*WRITTEN, *sorted((ROOT / "docs" / "studies").rglob("*.md"))]
_MADE = {ROOT / "docs" / "studies" / "index.md"}  # when the site is built
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_INDENTED_COMMAND = re.compile(r"^(?: {4,}|\t)(?:hpcgnn|mpirun|mpiexec|srun|sbatch|python|pip|make) .*$", re.MULTILINE)
_INLINE_COMMAND = re.compile(r"(?<!`)`(hpcgnn [^`]+)`(?!`)")


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(text_of(ROOT / "README.md")) <= 6000


def broken_links(page: Path) -> Iterator[str]:
    for found in _LINK.finditer(text_of(page)):
        link = found[1].partition("#")[0]
        target = (page.parent / link).resolve()
        if link and not re.match(r"[a-z]+:", link) and not target.exists() and target not in _MADE:
            yield f"{place(page, line_at(text_of(page), found.start()))}: {found[1]}"


def test_links_lead_somewhere() -> None:
    assert_none(offender for page in PAGES for offender in broken_links(page))


def commands_of(line: str) -> Iterator[list[str]]:
    """The words behind `hpcgnn` in the commands of a line."""
    for part in re.split(r" && | \|\|? | ; ", line):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        # A launcher's words stand before the command.
        starts = [start for start, word in enumerate(words) if word == "hpcgnn"]
        if starts and "..." not in words:
            yield words[starts[-1] + 1 :]


def commands_in(page: Path) -> Iterator[tuple[int, list[str]]]:
    """The commands of a page, in its blocks and in its sentences, with the line of the block or of the words."""
    for block in blocks(page):
        if block.kind in COMMANDS:
            lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
            yield from ((block.line, words) for line in lines for words in commands_of(line))
    text = without_blocks(page)
    for found in _INLINE_COMMAND.finditer(text):
        yield from ((line_at(text, found.start()), words) for words in commands_of(found[1]))


def unknown_in(words: list[str]) -> list[str]:
    """Commands and options among ``words`` that hpcgnn does not have."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        context = click.Context(command)
        if not words or words[0].startswith("-"):
            break
        found = command.get_command(context, words[0])
        if found is None:
            return words[:1]
        command, words = found, words[1:]
    words = words[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in words if word.startswith("--") or re.fullmatch("-[a-z]", word)]
    context = click.Context(command)
    known = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
    return [option for option in given if option not in known]


def test_commands_and_their_options_exist() -> None:
    found = [(page, line, words) for page in WRITTEN for line, words in commands_in(page)]
    assert len(found) > 40
    assert unknown_in(["train", "p.h5", "--bits", "2", "--no-such"]) == ["--no-such"]
    assert unknown_in(["study", "runs"]) == ["runs"]
    assert_none(
        f"{place(page, line)}: {unknown} in hpcgnn {' '.join(words)}"
        for page, line, words in found
        if (unknown := unknown_in(words))
    )


def unclear_blocks(page: Path) -> Iterator[str]:
    """Blocks of unknown kinds, fragments of Python that are none, and commands that are indented in place of a fence."""
    if needs(page) not in {"", *NEEDS}:
        yield f"{place(page)}: needs {needs(page)}"
    for block in blocks(page):
        if block.kind not in KINDS:
            yield f"{place(page, block.line)}: a block of kind {block.kind!r}"
        if block.kind == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                yield f"{place(page, block.line + (error.lineno or 0))}: {error.msg}"
    text = without_blocks(page)
    yield from (
        f"{place(page, line_at(text, found.start()))}: {found[0]}" for found in _INDENTED_COMMAND.finditer(text)
    )


def test_blocks_say_how_they_are_read() -> None:
    assert_none(offender for page in WRITTEN for offender in unclear_blocks(page))


def test_offenders_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `hpcgnn trian`,\n[or](nothing.md).\n\n    make all\n\n```cobol\n```\n\n```python\n1 +\n```\n")
    assert [line.rpartition("page.md")[2] for line in broken_links(page)] == [":2: nothing.md"]
    assert [(line, unknown_in(words)) for line, words in commands_in(page)] == [(1, ["trian"])]
    found = [line.rpartition("page.md")[2] for line in unclear_blocks(page)]
    assert found == [":6: a block of kind 'cobol'", ":10: invalid syntax", ":4:     make all"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reference = [(tmp_path / "site" / "reference" / f"{name}.html").read_text() for name in ("commands", "settings")]
    for option in ("--bits-period", "--most-stale-epochs", "--label-propagation"):
        assert all(option in page for page in reference)
    assert "kernels/report.html" in (tmp_path / "site" / "studies" / "index.html").read_text()
