"""Runs a section, and writes the outcome of its cases to ``NAME.json``."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from campaign.section import ENDS, FAILED, LEFT_OUT, Case, Section, Session
from hpcgnn.base.process import processor

ROOT = Path(__file__).resolve().parent.parent.parent


def run_section(
    section: Section, *, seed: int, seconds: float, short: bool, only: tuple[str, ...], console: Console
) -> dict[str, Any]:
    """The record of one run of the section: counts by group, facts, and every case that failed or was left out."""
    started = time.monotonic()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix=f"campaign-{section.name}-", ignore_cleanup_errors=True) as folder:
        session = Session(seed, Path(folder), short, started + seconds, only)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            shown = bar.add_task(section.name)
            for case in _cases(section, session):
                cases.append(case)
                failed = sum(each.end == FAILED for each in cases)
                bar.update(shown, description=f"{section.name}: {len(cases)} cases, {failed} failed: {case.name[:60]}")
                if case.end == FAILED:
                    console.print(
                        f"{section.name}: {case.group}: {case.name}: {case.said}", markup=False, soft_wrap=True
                    )
    return _record(section, session, cases, time.monotonic() - started)


def _cases(section: Section, session: Session) -> Iterator[Case]:
    """The cases of the section. An exception of the section itself becomes a failed case, so that earlier cases are not lost."""
    try:
        yield from section.run(session)
    except Exception as error:
        traceback.print_exc()
        yield Case("the campaign itself", section.name, FAILED, f"{type(error).__name__}: {error}")


def _record(section: Section, session: Session, cases: list[Case], seconds: float) -> dict[str, Any]:
    groups: dict[str, Counter[str]] = {}
    for case in cases:
        groups.setdefault(case.group, Counter())[case.end] += 1
    listed = [dataclasses.asdict(case) for case in cases if case.end in (FAILED, LEFT_OUT)]
    for case in listed:  # the place of the package on this machine is of no interest
        case["said"] = case["said"].replace(f"{ROOT}/", "")
    return {
        "section": section.name,
        "command": shlex.join(["python", "tools/campaign", *sys.argv[1:]]),
        "seed": session.seed,
        "short": session.short,
        "only": list(session.only),
        "seconds": round(seconds, 1),
        "longest_case_seconds": round(max((case.seconds for case in cases), default=0.0), 1),
        "on": about_this_machine(),
        "groups": {group: {end: counts[end] for end in ENDS if counts[end]} for group, counts in groups.items()},
        "facts": [dataclasses.asdict(fact) for fact in session.facts],
        "listed": listed,
    }


def write_record(record: dict[str, Any], folder: Path) -> Path:
    """Write the record to ``folder``, replacing an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['section']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def about_this_machine() -> dict[str, Any]:
    """The facts about this machine on which figures depend."""
    commit = _output(["git", "-C", str(ROOT), "describe", "--always", "--dirty"])
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "mpi": _output(["mpirun", "--version"]).partition("\n")[0],
        "hpcgnn": commit,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
