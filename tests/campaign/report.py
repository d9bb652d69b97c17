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
from hpcgnn.study.markdown import rows_of_table

FOUND = Path(__file__).with_name("found")
_INTRODUCTION = """\
# Reliability

Made by `python tests/campaign --out docs/reliability` from the records in the folder `reliability` beside this page.

`tests/campaign` is the program. A case ends well with the result that an undisturbed run has, or with one sentence that says
what is wrong and exit code 1 or 2, the same on all ranks. All other ends are failures: a traceback, a signal, a hang, a wrong
result, a file under its final name that is not whole. A defect is counted once, however many cases met it; each that was mended
has a regression test.
"""


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
    blocks = [_INTRODUCTION, _summary(found), *map(_of_section, found)]
    return "\n".join(blocks)


def _summary(found: list[dict[str, Any]]) -> str:
    rows = []
    for record in found:
        ends, of_section = totals(record), defects(record["section"])
        left = sum("left" in each for each in of_section)
        tried = sum(ends.values()) - ends[LEFT_OUT]
        title = section(record["section"]).title
        numbers = (tried, ends[FAILED], failing(record), ends[LEFT_OUT], len(of_section), left)
        rows.append((f"[{title}](#{_anchor(title)})", *numbers))
    heads = ("section", "cases tried", "failed in this run", "fail still", "left out", "defects found", "defects left")
    return _table(heads, rows)


def _of_section(record: dict[str, Any]) -> str:
    this = section(record["section"])
    on = record["on"]
    lines = [f"## {this.title}", "", this.about, ""]
    lines += [
        f"`{record['command']}`: {record['seconds'] / 60:.0f} min on {on['cpu']}, {on['cores']} cores, {on['mpi']}, Python"
        f" {on['python']}, hpcgnn {on['hpcgnn']}, {on['date']}; the longest case took {record['longest_case_seconds']:.0f} s.",
        "",
    ]
    ends = [end for end in ENDS if totals(record)[end]]
    rows = [(group, *(counts.get(end, 0) for end in ends)) for group, counts in record["groups"].items()]
    lines.append(_table(("cases", *ends), rows))
    if record["facts"]:
        rows = [(fact["name"], f"{_number(fact['value'])} {fact['unit']}".strip()) for fact in record["facts"]]
        lines.append(_table(("measured", ""), rows))
    lines += _listed(record["listed"], FAILED, "Failures of this run:") + _listed(
        record["listed"], LEFT_OUT, "Left out:"
    )
    if again := record.get("again"):
        ends = totals(again)
        lines += [
            f"Run again with hpcgnn {again['on']['hpcgnn']}, after it had been mended: of the cases with these names"
            f" {ends[RIGHT]} end right, {ends[REFUSED]} are refused, and {ends[FAILED]} fail.",
            "",
        ]
    lines += _defects(defects(record["section"]))
    return "\n".join(lines)


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
    return [head, "", *told, ""] if told else []


def _defects(found: list[dict[str, Any]]) -> list[str]:
    mended = [f"- {each['what']} `{each['test']}`" for each in found if "left" not in each]
    left = [f"- {each['what']} Left: {each['left']}" for each in found if "left" in each]
    lines = ["Found and mended, with the test of each:", "", *mended, ""] if mended else []
    return lines + (["Left:", "", *left, ""] if left else [])


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    return "\n".join([*rows_of_table(heads, [tuple(map(_number, row)) for row in rows]), ""])


def table(folder: Path) -> Table:
    """The summary for a terminal."""
    shown = Table(box=box.SIMPLE)
    shown.add_column("section")
    for end in ENDS:
        shown.add_column(end, justify="right")
    for record in records(folder):
        shown.add_row(record["section"], *(str(count or "") for count in totals(record).values()))
    return shown
