"""``hpcgnn doctor``: checks of this installation on this cluster, with suggested changes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, FILE, NumberRange
from hpcgnn.world import job

if TYPE_CHECKING:
    from hpcgnn.doctor.job import Report

_QUIET_SECONDS = 5.0  # interval of the notes that name the check under way
_STYLES = {"ok": "none", "worth changing": "yellow", "broken": "bold red"}


@click.command(epilog="\b\nExamples\n  hpcgnn doctor\n  mpirun -n 4 hpcgnn doctor --folder /scratch/me")
@click.option("--folder", type=FILE, default=Path("."), metavar="FOLDER",
              help="Folder in which all ranks write, read and remove a file of a few MiB; give the folder of your parts and "
                   "runs.  [default: the current folder]")  # fmt: skip
@click.option("--no-launch", is_flag=True, help="Without mpirun, check this process alone and start no ranks.")
@click.option("--timeout", type=NumberRange(0, min_open=True, max=1e6), default=60.0, show_default=True, metavar="SECONDS",
              help="Longest time in seconds for the start of the ranks, and for an answer from another rank.")  # fmt: skip
@click.option("--by-doctor", is_flag=True, hidden=True, help="Set if `hpcgnn doctor` started these ranks itself.")
@AS_JSON
def doctor(folder: Path, no_launch: bool, timeout: float, by_doctor: bool, as_json: bool) -> None:
    """Check that MPI, cores, kernels, GPUs, links and folders work together, and suggest changes.

    Under mpirun or srun, all ranks of the job are checked. Otherwise the command starts two ranks with the launcher that
    `hpcgnn launch` uses, and checks these.

    Each finding is "ok", "worth changing" (training works but would be slow) or "broken" (training would fail). The exit code is
    1 if something is broken.
    """
    from hpcgnn.doctor.examine import Unfinished, examine

    says = job.launcher_rank() == 0 and not by_doctor
    try:
        with _notes(says) as tell:
            report = examine(folder.absolute(), timeout, tell, launch=not no_launch, by_doctor=by_doctor)
    except Unfinished as cut:
        _print(cut.report, as_json=as_json)
        raise cut.error from cut
    if report is None:  # MPI takes this rank for a separate job, which rank 0 reports
        return
    if job.launcher_rank() == 0:
        _print(report, as_json=as_json)
    broken = [each for each in report.findings if each.state == "broken"]
    if broken and not by_doctor:
        names = ", ".join(each.check for each in broken)
        raise HpcgnnError(f"something is broken ({names}): {broken[0].sentence}", agreed=True)


@contextlib.contextmanager
def _notes(says: bool) -> Iterator[Callable[[str], None]]:
    """Yield ``tell(name)``, to be called when a check begins. Checks that take long are named on stderr."""
    current, ended, started = ["the installation"], threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(_QUIET_SECONDS):
            console.note(f"still checking {current[0]} after {time.monotonic() - started:.0f} s")

    def tell(name: str) -> None:
        current[0] = name

    thread = threading.Thread(target=watch, daemon=True)
    if says:
        thread.start()
    try:
        yield tell
    finally:
        ended.set()
        if says:
            thread.join()


def _print(report: Report, *, as_json: bool) -> None:
    from hpcgnn.doctor.job import counted

    if as_json:
        print(json.dumps(report.data()), flush=True)
        return
    title = f"hpcgnn doctor: {counted(report.ranks, 'rank')} on {counted(report.nodes, 'node')}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("check", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("finding, and what to do", overflow="fold")  # one below the other, because both are long
    for each in report.findings:
        text = "\n".join(part for part in (each.found, each.sentence and f"→ {each.sentence}") if part)
        table.add_row(each.check, each.state, text, style=_STYLES[each.state])
    console.stdout().print(table)
