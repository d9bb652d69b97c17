"""The durations of tests: of a run in one process and in several, of a part of the tests, and over a budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import durations
import pytest
from checkout import assert_none
from process_tree import cpu_seconds
from rank_pool import ROOT, import_path

COUNTING = "import time; sum(range(10**7)); print(time.process_time(), flush=True); input()"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with three files of tests in two folders."""
    for name in ("graph/test_one.py", "graph/deep/test_two.py", "plan/test_three.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_busy():\n    assert sum(range(10**7))\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


def run(checkout: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The durations and the output of pytest with these words."""
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "durations", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HPCGNN_TESTS"))}
    environment |= {"PYTHONPATH": import_path(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=-1, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return json.loads((checkout / durations.FILE).read_text()), done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_seconds_by_file_and_folder(checkout: Path, processes: str) -> None:
    found, output = run(checkout, "-n", processes)
    assert found["command"] == f"pytest -p xdist -p durations -n {processes}"
    assert found["whole"]
    assert set(found["folders"]) == {durations.COLLECTING, "tests/graph", "tests/plan"}
    files = found["files"]
    assert set(files) - {durations.COLLECTING} == {
        path.relative_to(checkout).as_posix() for path in checkout.rglob("test_*.py")
    }
    of_graph = [files[f"tests/graph/{name}.py"]["cpu"] for name in ("test_one", "deep/test_two")]
    assert min(of_graph) > 0
    assert found["folders"]["tests/graph"]["cpu"] == pytest.approx(sum(of_graph), abs=0.03)
    assert all(name in output.partition("CPU seconds")[2] for name in found["folders"])


def test_a_part_of_the_tests_is_not_held_to_budgets(checkout: Path) -> None:
    for words in (["-k", "busy"], ["tests/graph"]):
        found, _ = run(checkout, *words)
        assert not found["whole"]
        assert durations.problem(checkout / durations.FILE).endswith(f"but of: {found['command']}")


def test_seconds_of_processes_that_a_test_starts_count_while_they_run_and_afterwards() -> None:
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", COUNTING], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        own = float(process.stdout.readline())
        while_it_runs = cpu_seconds() - before
        process.communicate(b"\n")
    assert min(while_it_runs, cpu_seconds() - before) > own - 0.05  # the system counts in steps


def test_a_folder_over_its_budget_is_named(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    budget = durations.BUDGET["tests/plan"]
    for speed, expected in ((1.0, ""), (2.0, f"tests/plan took {1.8 * budget:.0f} s of {budget} s")):
        folders = {"tests/plan": {"cpu": 0.9 * budget, "wall": 1.0}}
        path.write_text(json.dumps({"whole": True, "speed": speed, "folders": folders}))
        assert durations.problem(path) == expected


def test_each_folder_has_a_budget() -> None:
    tests = ROOT / "tests"
    folders = {f"tests/{path.relative_to(tests).parts[0]}" for path in tests.rglob("test_*.py")}
    assert_none(
        sorted(
            f"{name} is in one of two places" for name in folders ^ (durations.BUDGET.keys() - {durations.COLLECTING})
        )
    )
