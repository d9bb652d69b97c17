"""The commands and programs of README and pages run as they stand, in order, from the top of a page, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import ROOT

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Fenced blocks that say how they are to be read: commands that run, programs that are written to a file, output, and commands
# for which one machine is not enough.
_KINDS = {"bash", "python", "text", "console"}
_PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "studies" not in page.parts]
_SECONDS = 300


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: kind and text."""
    return _FENCED.findall(page.read_text())


def script_of(page: Path) -> str:
    """All of a page as one shell script: programs are written to the files that their first line names."""
    return "".join(_steps(page))


def _steps(page: Path) -> Iterator[str]:
    for kind, text in blocks(page):
        named = re.match(r"# (\w+\.py)\n", text) if kind == "python" else None
        if named:
            yield f"printf %s {shlex.quote(text)} > {named[1]}\n"
        elif kind == "bash":
            yield text


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as a user of this environment does."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": tools, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


_RUN = [page for page in _PAGES if any(kind == "bash" for kind, _ in blocks(page))]


@pytest.mark.launches
@pytest.mark.parametrize("page", _RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_its_top(page: Path, tmp_path: Path) -> None:
    done = run(script_of(page), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_how_they_are_read(page: Path) -> None:
    assert {kind for kind, _ in blocks(page)} <= _KINDS


def test_tutorials_are_among_the_pages_that_run() -> None:
    assert len([page for page in _RUN if "tutorials" in page.parts]) >= 4


def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# made.py\nprint('made')\n```\n\n```bash\npython made.py\nfalse\ntrue\n```\n")
    done = run(script_of(page), tmp_path)
    assert done.returncode == 1
    assert done.stdout == "made\n"
