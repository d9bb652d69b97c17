"""The output of commands in a terminal: progress and notes on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hpcgnn.base.errors import printable

STDOUT, STDERR = 1, 2
_LINE_SECONDS = 60.0
_WIDTH_OF_FILES = 160  # characters of a line
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prted", "orted", "hydra_", "srun", "slurmstepd")


def is_terminal(descriptor: int) -> bool:
    """Return whether a terminal shows the output on ``descriptor``: of the launcher, if there is one on this host, because Open
    MPI gives ranks a pseudo-terminal for stdout and a pipe for stderr in any case."""
    launcher = _outermost_launcher()
    if launcher is None:
        return os.isatty(descriptor)
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{launcher}/fd/{descriptor}").startswith(("/dev/pts/", "/dev/tty"))
    return False


def _outermost_launcher() -> int | None:
    """The process id of the topmost launcher among the direct ancestors of this process, or None."""
    found, pid = None, os.getppid()
    with contextlib.suppress(OSError):  # without /proc no launcher is found
        while Path(f"/proc/{pid}/comm").read_text().startswith(_LAUNCHERS):
            found = pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


class _Console(Console):
    """A console that prints control characters in texts as escapes."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Rich's method, through which every printed text and every cell of a table passes."""
        return super().render_str(printable(text, keep="\n"), **options)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


def stdout() -> Console:
    """The console for results: plain text unless stdout is a terminal. Brackets in names of files are not markup. A file or a
    pipe gets wide lines, so that no number of a table is cut."""
    is_shown = is_terminal(STDOUT)
    width = None if is_shown or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return _Console(force_terminal=is_shown, width=width, markup=False, emoji=False)


@contextlib.contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield ``advance(n)``, which draws a progress bar with the remaining time on stderr, or prints a line now and then if that
    is no terminal, as in a batch job; with ``quiet``, it does nothing."""
    if quiet or not is_terminal(STDERR):
        yield (lambda count: None) if quiet else _lines(description, total)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(printable(description), total=total)
        yield lambda count: bar.advance(task, count)


def _lines(description: str, total: int | None) -> Callable[[int], None]:
    """Progress as lines, for the log file of a batch job, each if the last one is old enough."""
    started = said = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, said
        done += count
        now = time.monotonic()
        if total and done and now - said >= _LINE_SECONDS:
            said, share = now, done / total
            left = (now - started) * max(1 - share, 0.0) / share
            note(f"{description}: {share:.0%} after {_span(now - started)}, about {_span(left)} left")

    return advance


def _span(seconds: float) -> str:
    """A duration in words: ``_span(3700) == '1 h 2 min'``."""
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
        shown.add_row(name, _in_words(value))
    stdout().print(shown)


def numbers(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout, whose numbers get thousands separators. In a narrow terminal the headings have several lines, and
    the numbers stay whole."""
    out, shown = stdout(), Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in header:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*map(_in_words, row))
        for column, value in zip(shown.columns, row, strict=True):
            column.justify = "left" if isinstance(value, str) else "right"
    if out.measure(shown).maximum > out.width:
        for column in shown.columns:
            column.header = str(column.header).replace(" ", "\n")
    out.print(shown)


def _in_words(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def line(text: str) -> None:
    """Print a result in one line on stdout; control characters in names are printed as escapes."""
    print(printable(text, keep="\n"))


def note(text: str) -> None:
    """Print a note for the user on stderr, where it does not mix with results."""
    print(f"note: {printable(text)}", file=sys.stderr)


def size(count: float) -> str:
    """Bytes with a unit that fits: ``size(3 << 20) == '3.0 MiB'``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def set_up_logging(level: str, rank: int, *, quiet: bool = False) -> None:
    """Send log messages of rank 0 from ``level`` on to stderr; other ranks log errors only."""
    logger = logging.getLogger("hpcgnn")
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    handler.setFormatter(_Formatter())
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if rank or quiet else level.upper())
