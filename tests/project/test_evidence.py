"""Studies are whole, and of this version or the last one. Decimals of README and the pages that stand beside a link to a study
are in its report."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import assert_none, place, text_of, tool
from page_blocks import pages, without_blocks
from rank_pool import ROOT

from hpcgnn.base.version import __version__
from hpcgnn.lab.study import records
from hpcgnn.lab.study.specification import Specification
from hpcgnn.lab.study.summary import read_study

STUDIES = ROOT / "docs" / "studies"
LAST_VERSIONS = ("0.2.0", "0.1.0")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_DECIMAL = re.compile(r"\d[\d,]*\.\d+")
_MEASURED = re.compile(r"(?<![\w.])\d+\.\d+ (?:(?:s|ms|seconds|times|[KMG]i?B|points)\b(?!/)|%)")
PROJECTIONS = ("projection.md", "projection-policies.md")
# Predictions of the cost model, and counts of a small graph, which commands on these pages make again.
MADE_BY_THEIR_COMMANDS = (*PROJECTIONS, "how-to/choose-a-partitioner.md")


def studies() -> list[Path]:
    """The folders of committed studies."""
    return sorted(path.parent for path in STUDIES.glob("*/records.jsonl"))


@functools.cache
def study_in(folder: Path) -> Specification:
    """The specification in a folder."""
    return read_study(folder)


def unfinished_in(folder: Path) -> Iterator[str]:
    """Runs of a study that have not finished, and records without figures or of an older version."""
    found, runs = records.read(folder), study_in(folder).runs
    tried = {record.key for record in found}
    yield from (f"{folder.name}: {run.key} has not begun" for run in runs if run.key not in tried)
    for record in found:
        version = record.versions.get("hpcgnn")
        if record.status == records.STARTED:
            yield f"{folder.name}: {record.key} has no end"
        if record.is_finished and (version not in LAST_VERSIONS or not record.summary):
            yield f"{folder.name}: {record.key} is of version {version}, with {len(record.summary)} figures"


def test_studies_are_whole_and_of_this_version_or_the_last() -> None:
    assert __version__ == LAST_VERSIONS[0]
    assert len(studies()) > 15
    assert_none(offender for folder in studies() for offender in unfinished_in(folder))


def test_old_and_missing_runs_are_found(tmp_path: Path) -> None:
    shutil.copytree(STUDIES / "exchange", tmp_path, dirs_exist_ok=True)
    *others, last = (tmp_path / records.RECORDS).read_text().splitlines()
    assert not any(unfinished_in(tmp_path))
    for changed, expected in (
        ({"versions": {"hpcgnn": "0.0.9"}}, "is of version 0.0.9"),
        ({"status": records.STARTED}, "has no end"),
        ({"key": "another"}, "has not begun"),
    ):
        (tmp_path / records.RECORDS).write_text("\n".join([*others, json.dumps(json.loads(last) | changed), ""]))
        (offender,) = unfinished_in(tmp_path)
        assert expected in offender


def test_records_are_short() -> None:
    tools = tool("short_records")
    assert_none(
        f"{folder.name}: make its records short with `python tools/short_records.py {place(folder)}`"
        for folder in studies()
        if tools.text_of(tools.short(study_in(folder), records.read(folder))) != text_of(folder / records.RECORDS)
    )


def test_projections_are_of_this_version_or_the_last() -> None:
    for name in PROJECTIONS:
        assert re.search(
            rf"^Made by hpcgnn ({'|'.join(LAST_VERSIONS)})[.]$", text_of(ROOT / "docs" / name), re.MULTILINE
        ), name


# -- figures in sentences ----------------------------------------------------------------------------------------------


def passages(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and rows of tables. A paragraph that ends with a colon has the next table or list with it. What
    a paper says, in the second column of a table with this header, is no figure of ours."""
    parts = re.split(r"\n\s*\n", "\n".join(_ours(text)))
    for number, part in enumerate(parts):
        yield from re.split(r"\n(?=- |\| )", part)
        if part.rstrip().endswith(":"):
            yield part + "\n" + "".join(parts[number + 1 : number + 2])


def _ours(text: str) -> Iterator[str]:
    is_about_papers = False
    for line in text.splitlines():
        is_about_papers = line.startswith("|") and (is_about_papers or "| what it says |" in line)
        cells = line.split("|")
        yield "|".join([*cells[:2], *cells[3:]]) if is_about_papers else line


def figures_without_a_record(page: Path) -> Iterator[tuple[str, str]]:
    """Decimals of a passage that links to reports of studies, where none of these reports has the number; each with its place. A
    report has them with at least as many digits; it tells seconds where a page may tell milliseconds."""
    for passage in passages(without_blocks(page)):
        links = {(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(passage)}
        reports = [link for link in links if STUDIES in link.parents and link.name == "report.md"]
        if not reports:
            continue
        measured = [each.replace(",", "") for report in reports for each in _DECIMAL.findall(text_of(report))]
        units = (1, 1000) if re.search(r"\bms\b|milliseconds", passage) else (1,)
        for said in _DECIMAL.findall(re.sub(r"(§|section |Section )[\d.]+", "", _LINK.sub("", passage))):
            decimals, number = len(said.partition(".")[2]), said.replace(",", "")
            values = (float(each) * unit for each in measured for unit in units if is_as_precise(each, decimals, unit))
            if not any(f"{value:.{decimals}f}" == number for value in values):
                yield (
                    said,
                    f"{place(page)}: {said} is not in {', '.join(sorted(report.parent.name for report in reports))}",
                )


def is_as_precise(measured: str, decimals: int, unit: int) -> bool:
    """Return whether a number of a report has the digits that a page tells."""
    return len(measured.partition(".")[2]) >= decimals + (0 if unit == 1 else 3)


def test_figures_beside_a_link_to_a_study_are_in_its_report() -> None:
    assert_none(offender for page in pages() for _, offender in figures_without_a_record(page))


def figures_without_a_link(page: Path) -> Iterator[str]:
    """Measured figures with a unit, in a section that names no report of a study, no file of results and no test."""
    for section in re.split(r"^(?=#+ )", without_blocks(page), flags=re.MULTILINE):
        if not re.search(r"studies/[\w-]+/report\.md|\]\([\w./-]+\.json\)|\btests/[\w/]+\.py", section):
            title = section.partition("\n")[0]
            yield from (f"{place(page)}, {title}: {found[0]} has no record" for found in _MEASURED.finditer(section))


def test_figures_have_a_record() -> None:
    exempt = {ROOT / "docs" / name for name in MADE_BY_THEIR_COMMANDS}
    assert all(any(figures_without_a_link(page)) for page in exempt)
    assert_none(offender for page in pages() if page not in exempt for offender in figures_without_a_link(page))


def test_figures_beside_pykeen_are_in_its_file() -> None:
    table = text_of(ROOT / "docs/how-to/predict-links.md").partition("## Beside PyKEEN")[2].partition("\n## ")[0]
    lines = json.loads(text_of(ROOT / "docs/pykeen.json"))["results"]
    known = {f"{line[name]:.3f}" for line in lines for name in ("mrr", "mrr deviation")}
    said = {each for row in table.splitlines() if row.startswith("|") for each in _DECIMAL.findall(row)}
    assert len(said) > 20
    assert_none(said - known)


def test_each_result_of_the_readme_has_a_link() -> None:
    results = text_of(ROOT / "README.md").partition("## Results")[2].partition("\n## ")[0].split("\n- ")[1:]
    assert_none(sentence for sentence in results if not _LINK.search(sentence))
    assert len(results) >= 4


def test_figures_without_a_link_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\nIt takes 1.5 s, at 24.6 GB/s.\n\n## B\n\n2.5 %, see [c](studies/c/report.md).\n\n## C\n\n3.5 %\n"
    )
    assert [*figures_without_a_link(page)] == [
        f"{place(page)}, # A: 1.5 s has no record",
        f"{place(page)}, ## C: 3.5 % has no record",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It takes 1.5 s, or 2.25 ([a](docs/studies/memory/report.md)).", ["1.5", "2.25"]),
        ("It takes 1.5 s.\n\nSee [a](docs/studies/memory/report.md).", []),
        ("See [a](docs/studies/memory/report.md):\n\n| 1.5 |\n| 2.25 |\n", ["1.5", "2.25"]),
        (
            "| in the paper | what it says | here |\n| - | - | - |\n| a | 2.25 | 1.5 [a](docs/studies/memory/report.md) |",
            ["1.5"],
        ),
        ("By section 4.2, [a](docs/studies/memory/report.md) exists.", []),
        ("```\n1.5\n```\n[a](docs/studies/memory/report.md)", []),
        ("It takes {measured} ([a](docs/studies/memory/report.md)).", []),
    ],
)
def test_figures_that_no_record_has_are_found(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    measured = _DECIMAL.findall(text_of(STUDIES / "memory" / "report.md").partition("## ")[2])[0]
    page = tmp_path / "page.md"
    page.write_text(text.format(measured=measured).replace("1.5", "1.51234").replace("2.25", "2.25432"))
    changed = {"1.5": "1.51234", "2.25": "2.25432"}
    assert [said for said, _ in figures_without_a_record(page)] == [changed[each] for each in expected]
