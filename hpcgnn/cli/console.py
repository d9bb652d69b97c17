"""What commands show at a terminal: one progress bar on stderr, one table on stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

STDOUT, STDERR = 1, 2
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prted", "orted", "hydra_", "srun", "slurmstepd")


def is_terminal(descriptor: int) -> bool:
    """Whether what this process prints on ``descriptor`` ends on a terminal.

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


def stdout() -> Console:
    """For results: plain text where stdout does not end on a terminal. Names of files are no markup, whatever is in them."""
    return Console(force_terminal=is_terminal(STDOUT), markup=False, emoji=False)


@contextlib.contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield ``advance(n)``; it draws a bar on stderr, or nothing if ``quiet`` or if stderr is not a terminal."""
    if quiet or not is_terminal(STDERR):
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def table(title: str, rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns on stdout; whole numbers get thousands separators."""
    shown = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in rows:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        shown.add_row(name, text)
    stdout().print(shown)


def note(text: str) -> None:
    """Print something the user should know, on stderr, so that it never mixes with results."""
    print(f"note: {text}", file=sys.stderr)


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
    logger.handlers = [RichHandler(console=Console(stderr=True), show_path=False)]
    logger.setLevel(logging.ERROR if rank or quiet else level.upper())
