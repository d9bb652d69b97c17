"""The commands and programs of README and pages run as they stand, in order, from the top of a page, in an empty folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import KINDS, NEEDS, blocks, name_of, needs, pages, script_of, without_blocks
from rank_pool import ROOT
from virtual_clusters import require_rights

_SECONDS = 300
_MARKS = {"": "launches", "virtual hosts": "virtual_cluster", "slurm": "slurm"}
_INDENTED_COMMAND = re.compile(r"^(?: {4,}|\t)(?:hpcgnn|mpirun|mpiexec|srun|sbatch|python|pip|make) .*$", re.MULTILINE)

PAGES = pages()
RUN = [page for page in PAGES if any(block.kind == "bash" for block in blocks(page))]


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user of this environment does."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
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
    "page", [pytest.param(page, id=name_of(page), marks=getattr(pytest.mark, _MARKS[needs(page)])) for page in RUN]
)
def test_a_page_runs_from_its_top(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = request.getfixturevalue("slurm") if needs(page) == "slurm" else {}
    if needs(page) == "virtual hosts":
        require_rights()
    done = run(script_of(page), tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_how_they_are_read(page: Path) -> None:
    assert {block.kind for block in blocks(page)} <= KINDS
    assert needs(page) in {"", *NEEDS}
    assert _INDENTED_COMMAND.findall(without_blocks(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fragments_of_python_are_python(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "python":
            ast.parse(block.text)


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
