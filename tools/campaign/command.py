"""The campaign's command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from campaign import report
from campaign.run import ROOT, run_section, write_record
from campaign.section import FAILED, LEFT_OUT
from campaign.sections import NAMES, section

_LONG_MINUTES, _SHORT_MINUTES = 240.0, 3.0


@click.command(
    epilog="\b\nExamples\n  python tools/campaign --short"
    "\n  python tools/campaign kills disk --seed 7 --minutes 30 --out build/campaign"
    "\n  python tools/campaign network --only pipeline --out build/campaign"
)
@click.argument("names", nargs=-1, metavar="[SECTION]...", type=click.Choice(NAMES))
@click.option("--seed", default=0, show_default=True, help="Every choice by chance follows from it.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    help="Time budget of all sections together.  [default: 240; 3 with --short]",
)
@click.option("--short", is_flag=True, help="Run fewer and quicker cases.")
@click.option(
    "--only", multiple=True, metavar="WORD", help="Run the cases whose names have this word; may be given again."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=ROOT / "build" / "campaign",
    help="Folder for SECTION.json and reliability.md.",
)
@click.option(
    "--report", "only_report", is_flag=True, help="Run nothing; make reliability.md of the records in --out again."
)
def campaign(
    names: tuple[str, ...],
    seed: int,
    minutes: float | None,
    short: bool,
    only: tuple[str, ...],
    out: Path,
    only_report: bool,
) -> None:
    """Break things from outside, and list the cases that do not end as they should.

    A case ends well with a right result, or with one sentence and exit code 1 or 2. The exit code is 1 if a case did not end
    well, or if a section tried nothing. Without a SECTION, all sections run.
    """
    console = Console(stderr=True)
    has_failed = False
    if not only_report:
        chosen = [section(name) for name in (names or NAMES)]
        budget = 60 * (minutes or (_SHORT_MINUTES if short else _LONG_MINUTES)) / sum(each.share for each in chosen)
        for each in chosen:
            record = run_section(each, seed=seed, seconds=budget * each.share, short=short, only=only, console=console)
            write_record(record, out)
            has_failed |= any(case["end"] == FAILED for case in record["listed"])
            if lacking := _nothing_tried(record):
                has_failed = True
                console.print(f"{each.name}: {lacking}", markup=False, soft_wrap=True)
    page = report.write(out)
    console.print(report.table(out))
    console.print(f"{page}", markup=False, soft_wrap=True)
    sys.exit(has_failed)


def _nothing_tried(record: dict[str, Any]) -> str:
    """A phrase about a section that ran no case although it should have; empty if there is none."""
    if not record["groups"]:
        return "" if record["only"] else "no case ran"
    is_required = os.environ.get("HPCGNN_REQUIRE_ALL") == "1"
    if is_required and all(set(ends) == {LEFT_OUT} for ends in record["groups"].values()):
        return "all cases were left out, and HPCGNN_REQUIRE_ALL=1 says that nothing is missing"
    return ""
