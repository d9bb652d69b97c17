"""The ``hpcgnn`` command and how it ends: one message, the same exit on every rank."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
import time
from typing import NoReturn

import click

from hpcgnn import caches, version
from hpcgnn.comm import job
from hpcgnn.errors import HpcgnnError, StalledError, printable, told
from hpcgnn.lazy import importing
from hpcgnn.stop import StopRequest

_COMMANDS = {
    "info": "what this installation found: versions, MPI, kernels, partitioners, threads",
    "doctor": "checks of MPI, cores, kernels, GPUs, links and folders on this cluster, with the changes to make",
    "convert": "any source to graph.h5",
    "partition": "graph.h5 to parts.h5, one part a rank",
    "plan": "rows and bytes that each strategy sends, without training",
    "show": "the contents of a graph, its parts, a checkpoint or a run",
    "check": "every value and every checksum of a file or a run",
    "train": "train on all ranks (under mpirun or srun)",
    "bench": "kernels beside other libraries and the machine's limits",
    "predict": "scores for every node from a checkpoint",
    "launch": "a command on so many ranks, here or on virtual hosts with links of a given speed",
    "cluster": "virtual hosts that stay: up, down, run, rate, cut, heal, bytes, status",
    "study": "runs of a specification, interleaved, recorded and reported",
    "model": "seconds, bytes and memory of an epoch, fitted to records and predicted for other ranks and networks",
    "report": "one HTML page about runs or a study",
}
_INTERRUPTED = 130
# A rank that leaves makes the launcher kill the others: the one that prints goes first.
_GRACE_SECONDS = 1.0


class _LazyGroup(click.Group):
    """Imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        with importing():
            return getattr(importlib.import_module(f"hpcgnn.cli.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(version.in_words())
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print version and commit.",
)
def cli() -> None:
    """Full-batch graph neural network training over MPI.

    \b
    Example
      hpcgnn convert digits digits.h5
      hpcgnn partition digits.h5 parts.h5 --parts 4
      mpirun -n 4 hpcgnn train parts.h5 --out run
    """


def main() -> None:
    """Run the command line; never returns."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    # Where there is a colorama, numba has it order terminals to reset colours at the end, in files that stdout goes to as well.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    # From here on, or an early SIGUSR1 would kill the rank that it reaches; launchers stop ranks with SIGTERM.
    stop = StopRequest().listen().listen_to_interruptions()
    try:
        caches.check()
        code = cli.main(standalone_mode=False, obj=stop)
    except Exception as error:  # click makes an Abort of KeyboardInterrupt
        if stop.interrupted or isinstance(error, click.exceptions.Abort):
            _leave_interrupted(stop.advice)
        _leave_after(error)
    finally:
        stop.ignore()
    sys.exit(code)


def _leave_after(error: Exception) -> NoReturn:
    if isinstance(error, click.ClickException):
        _leave_before_mpi(error)
    if isinstance(error, HpcgnnError):
        _leave_with(error)
    if sentence := _sentence_of(error):
        _leave_with(HpcgnnError(sentence))
    sys.excepthook(type(error), error, error.__traceback__)
    job.abort_if_parallel(1)
    sys.exit(1)


def _sentence_of(error: Exception) -> str:
    """The sentence for an error that no code of ours has raised; none where it is a bug, which keeps its traceback."""
    if said := job.mpi_problem(error):
        return f"MPI failed: {said}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{told(os.fsdecode(error.filename or ''))} is no name of a file: it is too long"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is torch's RuntimeError
        return f"out of memory ({str(error).splitlines()[0] if str(error) else 'no more was said'}): use more ranks or less width"
    if type(error).__name__ == "OutOfMemoryError":  # torch's, of a device; torch need not be imported to know it
        return (
            f"out of memory on the device ({_first_sentences(error)}): use more ranks, less --hidden, or --device cpu"
        )
    return ""


def _first_sentences(error: Exception) -> str:
    """The numbers that a message names, without the advice behind them."""
    sentences = (str(error).splitlines() or ["no more was said"])[0].split(". ")
    return ". ".join(sentences[:5])


def _say(sentence: str) -> None:
    """Print a whole line in one write (``print`` makes two under ``-u``): ranks that speak at once share a stderr."""
    sys.stderr.write(f"hpcgnn: {printable(sentence)}\n")
    sys.stderr.flush()


def _die_quietly_on_sigterm() -> None:
    """For a rank that is leaving: the launcher's SIGTERM should end it without another message."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave_before_mpi(error: click.ClickException) -> NoReturn:
    """A mistake in the command line, which every rank finds alike: one of them says so."""
    _die_quietly_on_sigterm()
    if job.launcher_rank() == 0:
        usage = io.StringIO()
        error.show(usage)
        sys.stderr.write(printable(usage.getvalue(), keep="\n"))
    else:
        time.sleep(_GRACE_SECONDS)  # the launcher may kill the other ranks as soon as one leaves
    sys.exit(error.exit_code)


def _leave_with(error: HpcgnnError) -> NoReturn:
    _die_quietly_on_sigterm()
    rank = job.launcher_rank()
    if error.agreed:
        if rank == 0:
            _say(f"error: {error}")
        sys.exit(1)  # through MPI_Finalize, where the ranks meet
    where = f" on rank {rank}" if job.is_parallel() or rank else ""
    _say(f"error{where}: {error}")
    if isinstance(error, StalledError):
        time.sleep(error.grace_seconds)  # the first rank to abort ends all, and each is to say what it waited for
    job.abort_if_parallel(1)
    sys.exit(1)


def _leave_interrupted(advice: str) -> NoReturn:
    """Leave at once, without MPI_Finalize: the other ranks may never reach it."""
    if job.launcher_rank() == 0:
        _say(f"stopped{': ' if advice else ''}{advice}")
    else:
        time.sleep(_GRACE_SECONDS / 2)
    os._exit(_INTERRUPTED)
