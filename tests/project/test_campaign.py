"""The campaign (tools/campaign): it notices a missing check, its tables are complete, and its page follows from its records."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from checkout import assert_none, nodes_of, tool
from rank_pool import ROOT

import hpcgnn

CAMPAIGN = ROOT / "tools" / "campaign"
# Stands for a reader that no longer compares the content of an array with its checksum, nor that of a graph with its digests.
WITHOUT_A_CHECK = """\
from hpcgnn.data import graph_file

look = graph_file.look
graph_file.look = lambda array, rows, out, rule, slab, expected: look(array, rows, out, rule, slab, None)
graph_file.SlabReader.digests = {}
"""


def started(out: Path, fault: Path | None) -> tuple[int, dict[str, Any]]:
    """The exit code and the record of two cases of the campaign: a changed bit in each part's features."""
    words = ["wrong_cluster", "--short", "--only", "a bit of nodes/x, part", "--out", out]
    path = os.pathsep.join(filter(None, (str(fault or ""), os.environ.get("PYTHONPATH"))))
    command, environment = [sys.executable, CAMPAIGN, *words], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (out / "wrong_cluster.json").exists(), done.stderr
    return done.returncode, json.loads((out / "wrong_cluster.json").read_text())


@pytest.mark.slow
def test_a_check_that_is_removed_fails_the_campaign(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_A_CHECK)
    code, record = started(tmp_path / "as it is", None)
    assert (code, record["groups"]) == (0, {"bits of parts.h5": {"refused": 2}})
    code, record = started(tmp_path / "with the fault", tmp_path)
    assert (code, record["groups"]) == (1, {"bits of parts.h5": {"failed": 2}})
    assert [case["name"] for case in record["listed"]] == [f"a bit of nodes/x, part {part}" for part in (0, 1)]
    assert {case["said"] for case in record["listed"]} == {"`hpcgnn check` says: nothing"}


# -- tests that the campaign names -------------------------------------------------------------------------------------


def functions_of(path: Path) -> set[str]:
    """The names of the functions that a test file defines; none if there is no such file."""
    return {node.name for node in (nodes_of(path) if path.exists() else ()) if isinstance(node, ast.FunctionDef)}


def test_each_defect_found_has_a_test_or_a_reason() -> None:
    defects = [
        (path.name, defect)
        for path in sorted((CAMPAIGN / "found").glob("*.toml"))
        for defect in tomllib.loads(path.read_text())["defect"]
    ]
    assert len(defects) > 70
    offenders = []
    for name, defect in defects:
        path, _, function = defect.get("test", "").partition("::")
        is_tested = path.startswith("tests/") and function.partition("[")[0] in functions_of(ROOT / path)
        is_complete = is_tested if "test" in defect else bool(defect.get("left"))
        if not is_complete or not set(defect) < {"what", "test", "left"}:
            offenders.append(f"{name}: {defect}")
    assert_none(offenders)


def test_files_that_run_under_sanitizers_exist() -> None:
    sanitizers = tool("campaign.sanitizers")
    names = [f"kernels/{name}.py" for name in sanitizers._FROM_PYTHON] + [name for name, _ in sanitizers._WITH_BOUNDS]
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


# -- tables of cases ---------------------------------------------------------------------------------------------------


def test_every_command_has_cases() -> None:
    cases = tool("campaign.bad_input.command_line")
    names = [name for name, _ in cases.commands()]
    assert sorted(names) == sorted(cases.BASES)
    found = {task.name for task in cases.tasks(Path())}
    assert len(found) > 10_000
    assert [name for name in names if not any(task.startswith(f"command line {name} ") for task in found)] == []


def test_every_public_function_has_cases() -> None:
    calls = tool("campaign.bad_input.public").CALLS
    of_package = {f"hpcgnn.{name}" for name in hpcgnn.__all__}
    of_kernels = {f"hpcgnn.kernels.{name}" for name in hpcgnn.kernels.__all__}
    no_functions = {"hpcgnn.HpcgnnError", "hpcgnn.__version__", "hpcgnn.kernels", "hpcgnn.kernels.backends"}
    assert (of_package | of_kernels) - no_functions - calls.keys() == set()
    assert [name for name, call in calls.items() if not call.tensors.keys() <= set(call.arguments)] == []


# -- committed records -------------------------------------------------------------------------------------------------


def test_the_page_follows_from_the_records() -> None:
    documents = ROOT / "docs" / "reliability"
    assert tool("campaign.report").page(documents) == documents.with_suffix(".md").read_text()


def test_every_section_has_a_record_of_a_long_run_without_failures() -> None:
    report = tool("campaign.report")
    records = report.records(ROOT / "docs" / "reliability")
    assert [record["section"] for record in records] == list(report.NAMES)
    for record in records:
        name, ends = record["section"], report.totals(record)
        assert not record["short"], name
        assert not record["only"], name
        assert ends["right"] + ends["refused"] > 0, name
        left = sum("left" in defect for defect in report.defects(name))
        assert report.failing(record) <= left, f"{name}: a failure is mended or explained"
