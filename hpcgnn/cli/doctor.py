"""``hpcgnn doctor``: whether this installation fits this cluster, and the changes to make."""

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

from hpcgnn.cli import console
from hpcgnn.cli.ranges import NumberRange
from hpcgnn.comm import job
from hpcgnn.errors import HpcgnnError

if TYPE_CHECKING:
    from hpcgnn.doctor.finding import Report

_QUIET_SECONDS = 5.0  # then a note says where it is, and again after each such time
_STYLES = {"ok": "none", "worth changing": "yellow", "broken": "bold red"}


@click.command(epilog="\b\nExamples\n  hpcgnn doctor\n  mpirun -n 4 hpcgnn doctor --folder /scratch/me")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("."), metavar="FOLDER",
              help="Where all ranks write a file of some MiB, read and remove it.  [default: the current folder]")  # fmt: skip
@click.option("--no-launch", is_flag=True, help="Without mpirun, look at this process alone and start no ranks.")
@click.option("--timeout", type=NumberRange(0, min_open=True, max=1e6), default=60.0, show_default=True, metavar="SECONDS",
              help="How long ranks may take to start, and to answer each other.")  # fmt: skip
@click.option("--by-doctor", is_flag=True, hidden=True, help="This command has started these ranks itself.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table.")
def doctor(folder: Path, no_launch: bool, timeout: float, by_doctor: bool, as_json: bool) -> None:
    """Check that MPI, cores, kernels, GPUs, links and folders work together here, and name the changes to make.

    Under mpirun or srun it looks at all ranks of the job. Without one it starts two ranks, with the launcher that `hpcgnn launch`
    takes, and looks at these. The exit code is 1 where something is broken: training would fail. A finding that is worth changing
    makes it slow.
    """
    from hpcgnn.doctor.examine import Unfinished, examine

    says = job.launcher_rank() == 0 and not by_doctor
    try:
        with _notes(says) as tell:
            report = examine(folder.absolute(), timeout, tell, launch=not no_launch, by_doctor=by_doctor)
    except Unfinished as cut:
        _print(cut.report, as_json=as_json)
        raise cut.error from cut
    if report is None:  # a rank that MPI takes for a job of its own: rank 0 tells of it
        return
    if job.launcher_rank() == 0:
        _print(report, as_json=as_json)
    broken = [each for each in report.findings if each.state == "broken"]
    if broken and not by_doctor:
        names = ", ".join(each.check for each in broken)
        raise HpcgnnError(f"something is broken ({names}): {broken[0].sentence}", agreed=True)


@contextlib.contextmanager
def _notes(says: bool) -> Iterator[Callable[[str], None]]:
    """Yield ``tell(name)`` of the check that begins: one that takes long is told on stderr."""
    current, ended, started = ["the installation"], threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(_QUIET_SECONDS):
            console.note(f"still looking at {current[0]} after {time.monotonic() - started:.0f} s")

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
    if as_json:
        print(json.dumps(report.data()), flush=True)
    else:
        _show(report)


def _show(report: Report) -> None:
    from hpcgnn.doctor.finding import counted

    ranks = counted(report.ranks, "rank")
    nodes = counted(report.nodes, "node")
    table = Table(title=f"hpcgnn doctor: {ranks} on {nodes}", title_justify="left", box=box.SIMPLE)
    for name in ("check", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("found, and a sentence about it", overflow="fold")  # one below the other: both are long
    for each in report.findings:
        text = "\n".join(part for part in (each.found, each.sentence and f"→ {each.sentence}") if part)
        table.add_row(each.check, each.state, text, style=_STYLES[each.state])
    console.stdout().print(table)
