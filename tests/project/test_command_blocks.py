"""The commands and programs of README and pages run as they stand, in order, from the top of a page, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import place
from page_blocks import blocks, needs, pages, script_of
from rank_pool import ROOT
from virtual_clusters import require_rights
from warm_commands import warm_commands

_SECONDS = 300
_MARKS = {"": "launches", "virtual hosts": "virtual_cluster", "slurm": "slurm"}

PAGES = pages()
# These pages are about an installation: here, commands start as they do for a user.
COLD = {ROOT / "README.md", ROOT / "docs" / "how-to" / "install.md"}
RUN = [page for page in PAGES if any(block.kind == "bash" for block in blocks(page))]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder with ``python`` and ``hpcgnn``, which start at once."""
    folder = tmp_path_factory.mktemp("warm")
    with warm_commands(folder):
        yield str(folder)


def run(script: str, folder: Path, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user of this environment does, with the programs in the folder ``first``."""
    tools = os.pathsep.join([*filter(None, [first]), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": tools, "PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=place(page), marks=getattr(pytest.mark, _MARKS[needs(page)])) for page in RUN]
)
def test_a_page_runs_from_its_top(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if needs(page) == "virtual hosts":
        require_rights()
    environment = request.getfixturevalue("slurm") if needs(page) == "slurm" else {}
    first = "" if needs(page) or page in COLD else request.getfixturevalue("warm")
    done = run(script_of(page), tmp_path, first, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_and_all_tutorials_are_among_the_pages_that_run() -> None:
    assert ROOT / "README.md" in RUN
    assert {page for page in PAGES if "tutorials" in page.parts} <= set(RUN)


def test_make_targets_of_the_readme_run_in_ci() -> None:
    asked = {line.split("#")[0].strip() for block in blocks(ROOT / "README.md") for line in block.text.splitlines()}
    targets = {line for line in asked if line.startswith("make ")}
    assert {"make run", "make test"} <= targets
    assert targets <= set((ROOT / ".ci" / "run").read_text().splitlines())


def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# made.py\nprint('made')\n```\n\n```bash\npython made.py\nfalse\ntrue\n```\n")
    done = run(script_of(page), tmp_path)
    assert done.returncode == 1
    assert done.stdout == "made\n"
