"""README and the pages in docs/: short enough, without a broken link, with no command or option that does not exist; the site."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from page_blocks import COMMANDS, blocks, name_of, pages, without_blocks
from rank_pool import ROOT

from hpcgnn.cli.main import cli

WRITTEN = pages()
PAGES = [*WRITTEN, *sorted((ROOT / "docs" / "studies").rglob("*.md"))]
_MADE = {ROOT / "docs" / "studies" / "index.md"}  # when the site is built
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text()) <= 6000


def test_results_of_the_readme_are_those_of_their_reports() -> None:
    results = (ROOT / "README.md").read_text().partition("## Results")[2].partition("\n## ")[0]
    reports = 0
    for sentence in results.split("\n- ")[1:]:
        claimed = re.findall(r"\d+\.\d+", _LINK.sub("", sentence))
        for report in re.findall(r"\((docs/studies/[^)]+)\)", sentence):
            measured = [float(number) for number in re.findall(r"\d+\.\d+", (ROOT / report).read_text())]
            for number in claimed:
                decimals = len(number.partition(".")[2])
                assert any(f"{value:.{decimals}f}" == number for value in measured), f"{number} is not in {report}"
            reports += 1
    assert reports >= 4


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(page.read_text())]
    local = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    assert [
        link for link in local if not (place := (page.parent / link).resolve()).exists() and place not in _MADE
    ] == []


def commands_in(page: Path) -> Iterator[list[str]]:
    """The words behind `hpcgnn` in the commands of a page, in its blocks and in its sentences."""
    commands = "".join(block.text for block in blocks(page) if block.kind in COMMANDS)
    lines = [line for line in re.sub(r"\\\n\s*", "", commands).splitlines() if re.search(r"\bhpcgnn ", line)]
    for line in [*lines, *re.findall(r"(?<!`)`(hpcgnn [^`]+)`(?!`)", without_blocks(page))]:
        for part in re.split(r" && | \|\|? | ; ", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # a quotation that goes on in the next line
                continue
            # A launcher's words stand before the command.
            starts = [place for place, word in enumerate(words) if word == "hpcgnn"]
            if starts and "..." not in words:
                yield words[starts[-1] + 1 :]


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


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    assert {" ".join(words): unknown for words in commands_in(page) if (unknown := unknown_in(words))} == {}


def test_commands_are_found_in_pages() -> None:
    assert unknown_in(["train", "p.h5", "--bits", "2", "--no-such"]) == ["--no-such"]
    assert unknown_in(["study", "runs"]) == ["runs"]
    assert sum(1 for page in WRITTEN for _ in commands_in(page)) > 40


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pages = {
        name: (tmp_path / "site" / f"{name}.html").read_text() for name in ("reference/commands", "reference/settings")
    }
    for option in ("--bits-period", "--most-stale-epochs", "--label-propagation"):
        assert all(option in page for page in pages.values())
    assert "kernels/report.html" in (tmp_path / "site" / "studies" / "index.html").read_text()
