"""The commands and programs of README and pages run as they stand, in order, from the top of a page, in an empty folder.

README and pages that have changed always run; of the tutorials and of the other pages, some that the commit draws, and all every
night.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import drawn, place
from page_blocks import blocks, needs, pages, script_of
from rank_pool import ROOT
from virtual_clusters import default_name, require_rights

_SECONDS = 300
_MARKS = {"": "launches", "virtual hosts": "virtual_cluster", "slurm": "slurm"}

PAGES = pages()
COLD = ROOT / "docs" / "how-to" / "install.md"  # here, commands start as they do for a user
RUN = [page for page in PAGES if any(block.kind == "bash" for block in blocks(page))]
README = ROOT / "README.md"
TUTORIALS = [page for page in RUN if "tutorials" in page.parts]
CHOSEN = [README, *drawn(TUTORIALS, 2), *drawn([page for page in RUN if page not in (README, *TUTORIALS)], 4)]


def run(script: str, folder: Path, first: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user of this environment does, with the programs in the folder ``first``."""
    tools = os.pathsep.join([*map(str, filter(None, [first])), str(Path(sys.executable).parent), os.environ["PATH"]])
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
    "page", [pytest.param(page, id=place(page), marks=getattr(pytest.mark, _MARKS[needs(page)])) for page in CHOSEN]
)
def test_a_page_runs_from_its_top(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    on_hosts = needs(page) == "virtual hosts"
    if on_hosts:
        require_rights()
    environment = request.getfixturevalue("slurm") if needs(page) == "slurm" else {}
    first = None if on_hosts or page == COLD else request.getfixturevalue("warm")
    with default_name() if on_hosts else contextlib.nullcontext():
        done = run(script_of(page), tmp_path, first, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_and_all_tutorials_have_commands_that_run() -> None:
    assert {README, *(page for page in PAGES if "tutorials" in page.parts)} == {README, *TUTORIALS} <= set(RUN)


def test_make_targets_of_the_readme_run_in_ci() -> None:
    asked = {line.split("#")[0].strip() for block in blocks(README) for line in block.text.splitlines()}
    targets = {line for line in asked if line.startswith("make ")}
    assert {"make run", "make test"} <= targets
    assert targets <= set((ROOT / ".ci" / "run").read_text().splitlines())


@pytest.mark.slow
def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# made.py\nprint('made')\n```\n\n```bash\npython made.py\nfalse\ntrue\n```\n")
    done = run(script_of(page), tmp_path)
    assert done.returncode == 1
    assert done.stdout == "made\n"
