"""Writes ``reliability.md`` from the records of the campaign's sections, and from the defects that it has found."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from campaign.section import ENDS, FAILED, LEFT_OUT, REFUSED, RIGHT
from campaign.sections import NAMES, section
from hpcgnn.lab.study import tables

FOUND = Path(__file__).with_name("found")
_INTRODUCTION = """\
# Reliability

This page shows what hpcgnn does when something goes wrong: kills at any moment, full and failing disks, cut and slow links, and
long runs. Read it to judge whether you can trust hpcgnn with long jobs. The program `tools/campaign` breaks things on purpose
and checks how every command ends. Each section below describes its cases and their result, and lists the defects that were
found.

`make test` covers what needs no fault of the machine. Damage to every array, attribute and field of a file is drawn in
`tests/data/test_damaged_files.py` and `tests/train/test_damaged_runs.py`, values of every option of a command in
`tests/cli/test_drawn_commands.py`. `tests/base/test_arguments.py` has wrong arguments of Python functions,
`tests/train/test_limits_of_numbers.py` numbers that overflow, `tests/project/test_source_and_input.py` rules against code in
files, and `tests/world/test_startup.py` ranks that differ.
"""
_HOW_TO_READ = """\
## How to read the results

Each case ends in one of these ways:

| end | meaning |
| --- | --- |
| right | the result is that of an undisturbed run |
| refused | the command correctly ended with exit code 1 or 2 and one sentence that says what is wrong, the same on all ranks |
| failed | anything else: a traceback, a signal, a hang, a wrong result, or an incomplete file under its final name |
| skipped | the case was not run, for the reason given |

A defect counts once, however many cases met it. Many defects were found in earlier runs than the recorded one, so a section can
have more defects than failed cases. Every fixed defect has a regression test, which is named with it.

The page is made from the records in the folder `reliability` beside it. `python tools/campaign --out docs/reliability` runs
all sections again, and `make campaign` runs a short form of all. A nightly workflow runs other random cases every time. Records
that name `tests/campaign` are from the time when the program was there. They have the text of each case that failed before it was
mended.
"""
# Words of records, and those that the page shows.
_SHOWN = {LEFT_OUT: "skipped", "bytes an epoch": "bytes per epoch"}


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of sections in ``folder``, in the order of sections."""
    paths = [folder / f"{name}.json" for name in NAMES]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def defects(name: str) -> list[dict[str, Any]]:
    """The defects that the section has found: ``what``, and the ``test`` that covers the repair, or the reason why it is
    ``left``.
    """
    path = FOUND / f"{name}.toml"
    return tomllib.loads(path.read_text()).get("defect", []) if path.exists() else []


def totals(record: dict[str, Any]) -> dict[str, int]:
    """The number of cases with each end."""
    return {end: sum(counts.get(end, 0) for counts in record["groups"].values()) for end in ENDS}


def failing(record: dict[str, Any]) -> int:
    """The number of cases that fail: in the run, or in a later run of the failed cases after a repair."""
    return totals(record.get("again", record))[FAILED]


def write(folder: Path) -> Path:
    """Write the page beside ``folder`` if that is ``docs/reliability``, else into it."""
    path = folder.with_suffix(".md") if folder.name == "reliability" else folder / "reliability.md"
    path.write_text(page(folder))
    return path


def page(folder: Path) -> str:
    """The whole text."""
    found = records(folder)
    blocks = [_INTRODUCTION, _result(found), _summary(found), _HOW_TO_READ, *map(_of_section, found)]
    return "\n".join(blocks)


def _result(found: list[dict[str, Any]]) -> str:
    """A paragraph with the result of all sections."""
    tried = sum(sum(ends.values()) - ends[LEFT_OUT] for ends in map(totals, found))
    of_all = [each for record in found for each in defects(record["section"])]
    left = sum("left" in each for each in of_all)
    words = f"{tried:,} cases were tried, and {len(of_all)} defects were found. "
    words += f"{len(of_all) - left} of them are fixed." if left else "All of them are fixed."
    if left:
        words += (
            f" The other {left} are explained in their sections: they are properties of MPI, PyTorch Geometric or the memory"
            " allocator, or do no harm."
        )
    return "\n".join(["## Result", "", words, ""])


def _summary(found: list[dict[str, Any]]) -> str:
    rows = []
    for record in found:
        ends, of_section = totals(record), defects(record["section"])
        left = sum("left" in each for each in of_section)
        tried = sum(ends.values()) - ends[LEFT_OUT]
        title = section(record["section"]).title
        numbers = (tried, ends[FAILED], failing(record), ends[LEFT_OUT], len(of_section), left)
        rows.append((f"[{title}](#{_anchor(title)})", *numbers))
    heads = (
        "section",
        "cases tried",
        "failed at first",
        "failing after the fixes",
        "skipped",
        "defects found",
        "defects left",
    )
    return _table(heads, rows)


def _of_section(record: dict[str, Any]) -> str:
    this = section(record["section"])
    on = record["on"]
    ends = [end for end in ENDS if totals(record)[end]]
    rows = [(group, *(counts.get(end, 0) for end in ends)) for group, counts in record["groups"].items()]
    lines = [f"## {this.title}", "", this.about.strip(), "", "**Result**", "", _in_words(record), ""]
    lines.append(_table(("cases", *(_SHOWN.get(end, end) for end in ends)), rows))
    if record["facts"]:
        units = [_SHOWN.get(fact["unit"], fact["unit"]) for fact in record["facts"]]
        rows = [
            (fact["name"], f"{_number(fact['value'])} {unit}".strip())
            for fact, unit in zip(record["facts"], units, strict=True)
        ]
        lines.append(_table(("measurement", "value"), rows))
    lines += _defects(defects(record["section"]))
    if failing(record):
        lines += _listed(record.get("again", record)["listed"], FAILED, "Cases that still fail")
    if again := record.get("again"):
        ends_again = totals(again)
        lines += [
            f"The failed cases ran again with hpcgnn {again['on']['hpcgnn']}, after the fixes: {ends_again[RIGHT]} end right,"
            f" {ends_again[REFUSED]} are refused, and {ends_again[FAILED]} fail. (They were selected by words in their names,"
            " which other cases may contain as well.)",
            "",
        ]
    lines += _listed(record["listed"], LEFT_OUT, "Skipped cases")
    lines += [
        f"Recorded by `{record['command']}` in {record['seconds'] / 60:.0f} min on {on['cpu']}, {on['cores']} cores, {on['mpi']},"
        f" Python {on['python']}, hpcgnn {on['hpcgnn']}, {on['date']}. The longest case took"
        f" {record['longest_case_seconds']:.0f} s.",
        "",
    ]
    return "\n".join(lines)


def _in_words(record: dict[str, Any]) -> str:
    """The result of a section in a few sentences."""
    ends, found = totals(record), defects(record["section"])
    tried, failed, still = sum(ends.values()) - ends[LEFT_OUT], ends[FAILED], failing(record)
    words = (
        f"{tried:,} cases were tried, and {failed:,} of them failed."
        if failed
        else f"{tried:,} cases were tried, and none of them failed."
    )
    if failed:
        words += (
            f" {still:,} of them still fail, for the reasons below."
            if still
            else " After the fixes, none of them fails."
        )
    if found:
        left = sum("left" in each for each in found)
        noun = "defect" if len(found) == 1 else "defects"
        words += f" The section has found {len(found)} {noun}: {len(found) - left} fixed, {left} left."
    return words


def _listed(cases: list[dict[str, Any]], end: str, head: str) -> list[str]:
    if end == FAILED:
        told = [f"- {case['group']}, {case['name']}: {_short(case['said'])}" for case in cases if case["end"] == end]
    else:  # many cases have one reason
        reasons: dict[str, int] = {}
        for case in cases:
            if case["end"] == end:
                reason = f"{case['group']}: {_short(case['said'])}"
                reasons[reason] = reasons.get(reason, 0) + 1
        told = [f"- {reason} ({count})" for reason, count in reasons.items()]
    return _folded(head, told)


def _defects(found: list[dict[str, Any]]) -> list[str]:
    fixed = [f"- {each['what']} Test: `{each['test']}`" for each in found if "left" not in each]
    left = [f"- {each['what']} {each['left']}" for each in found if "left" in each]
    lines = ["**Defects that are left, and why**", "", *left, ""] if left else []
    return lines + _folded("Defects that were found and fixed", fixed)


def _folded(head: str, items: list[str]) -> list[str]:
    """A list that a reader opens by its heading."""
    summary = f"<summary>{head} ({len(items)})</summary>"
    return ['<details markdown="1">', summary, "", *items, "", "</details>", ""] if items else []


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    cells = tuple(tuple(map(_number, row)) for row in rows)
    return "\n".join([*tables.Table("", heads, cells).markdown(), ""])


def table(folder: Path) -> Table:
    """The summary for a terminal."""
    shown = Table(box=box.SIMPLE)
    shown.add_column("section")
    for end in ENDS:
        shown.add_column(end, justify="right")
    for record in records(folder):
        shown.add_row(record["section"], *(str(count or "") for count in totals(record).values()))
    return shown
