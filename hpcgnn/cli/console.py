"""The output of commands at a terminal: one progress bar on stderr, one table on stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hpcgnn.errors import printable

STDOUT, STDERR = 1, 2
_LINE_SECONDS = 60.0
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prted", "orted", "hydra_", "srun", "slurmstepd")


def is_terminal(descriptor: int) -> bool:
    """Return whether what this process prints on ``descriptor`` ends on a terminal.

    Under a launcher the process's own descriptors do not tell (Open MPI gives ranks a pseudo-terminal for stdout and a pipe
    for stderr, wherever its own output goes), so the launcher's are looked at, where it runs on this host.
    """
    launcher = _outermost_launcher()
    if launcher is None:
        return os.isatty(descriptor)
    try:
        return os.readlink(f"/proc/{launcher}/fd/{descriptor}").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


def _outermost_launcher() -> int | None:
    """The pid of the highest launcher right above this process, or None."""
    found, pid = None, os.getppid()
    with contextlib.suppress(OSError):  # no /proc: then nobody is found
        while Path(f"/proc/{pid}/comm").read_text().startswith(_LAUNCHERS):
            found = pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


class _Console(Console):
    """One that gives no orders to the terminal but its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, of which everything that is printed and every cell of a table is made."""
        return super().render_str(printable(text, keep="\n"), **options)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


def stdout() -> Console:
    """For results: plain text where stdout does not end on a terminal. Names of files are no markup, whatever is in them."""
    return _Console(force_terminal=is_terminal(STDOUT), markup=False, emoji=False)


@contextlib.contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield ``advance(n)``; it draws a bar on stderr with the time left, or nothing if ``quiet``.

    Where stderr is not a terminal, as in a batch job, it prints a line every ``_LINE_SECONDS``.
    """
    if quiet:
        yield lambda count: None
        return
    if not is_terminal(STDERR):
        yield _Lines(description, total).advance
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(printable(description), total=total)
        yield lambda count: bar.advance(task, count)


class _Lines:
    """Progress for a file that somebody looks into now and then."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total, self._done = description, total, 0
        self._started = self._said = time.monotonic()

    def advance(self, count: int) -> None:
        """Count, and say how far it is if that was not said lately."""
        self._done += count
        now = time.monotonic()
        if not self._total or not self._done or now - self._said < _LINE_SECONDS:
            return
        self._said = now
        done = self._done / self._total
        left = (now - self._started) * max(1 - done, 0.0) / done
        note(f"{self._description}: {done:.0%} after {_span(now - self._started)}, about {_span(left)} left")


def _span(seconds: float) -> str:
    """``_span(3700) == '1 h 2 min'``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def table(title: str, rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns on stdout; whole numbers get thousands separators."""
    shown = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in rows:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        shown.add_row(name, text)
    stdout().print(shown)


def line(text: str) -> None:
    """Print a result that is no table, on stdout; control characters in names are shown."""
    print(printable(text, keep="\n"))


def note(text: str) -> None:
    """Print something the user should know, on stderr, so that it never mixes with results."""
    print(f"note: {printable(text)}", file=sys.stderr)


def size(count: int) -> str:
    """Bytes for people: ``size(3 << 20) == '3.0 MiB'``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def set_up_logging(level: str, rank: int, *, quiet: bool = False) -> None:
    """Log messages of rank 0 go to stderr from ``level`` on; other ranks only report errors."""
    logger = logging.getLogger("hpcgnn")
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    handler.setFormatter(_Formatter())
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if rank or quiet else level.upper())
