"""The campaign (tools/campaign): the defects that it found have tests, and its page follows from its records."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from checkout import assert_none, nodes_of, tool
from rank_pool import ROOT

CAMPAIGN = ROOT / "tools" / "campaign"


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
    assert len(defects) > 25
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
