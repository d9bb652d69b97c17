"""The ``hpcgnn`` command. It ends with at most one message, and with the same exit code on every rank."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import time
from typing import Any, NoReturn, Self

import click

from hpcgnn.base import process, version
from hpcgnn.base.errors import HpcgnnError, StalledError, nearest, printable, quoted
from hpcgnn.base.lazy import importing
from hpcgnn.base.process import StopRequest, answer_interruptions
from hpcgnn.world import job


def set_up_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams that end a command in one sentence where they cannot be written.

    A stream that the caller has closed gets a descriptor, in whose place a file of the command would be opened, and printed to.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)  # the lowest that is free; a read-only one refuses results
            if name != "stdin":
                setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    with contextlib.suppress(io.UnsupportedOperation):  # a stream of another program, which may be no file
        sys.stdout, sys.stderr = _Results.of(sys.stdout), _Messages.of(sys.stderr)
        atexit.register(_give_up)


class _Messages(io.TextIOWrapper):
    """A stream that goes on where the system refuses to write, because the work does not need its messages."""

    @classmethod
    def of(cls, stream: Any) -> Self:
        """A stream for the same descriptor, in place of a text stream. Names of files may be any bytes."""
        stream.flush()
        at_once = bool(getattr(stream, "write_through", False))
        buffer = open(stream.fileno(), "wb", 0 if at_once else -1, closefd=False)  # noqa: SIM115
        at_line_ends = bool(getattr(stream, "line_buffering", False))
        return cls(buffer, stream.encoding, "backslashreplace", line_buffering=at_line_ends, write_through=at_once)

    def write(self, text: str) -> int:
        """As of any text stream. click writes an empty text to see whether it can write, and ignores the error."""
        try:
            return super().write(text) if text != "" else 0
        except OSError as error:
            self.fail(error)
        return len(text)

    def flush(self) -> None:
        """As of any text stream."""
        try:
            super().flush()
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """Called with the error of the system."""


class _Results(_Messages):
    def fail(self, error: OSError) -> None:
        """Raise HpcgnnError, or the system's error for a reader that has left, as ``head`` does: then a command ends quietly."""
        with contextlib.suppress(OSError):  # what is still in the buffer goes nowhere, without a second error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise error
        raise HpcgnnError(
            f"cannot write to standard output: {error.strerror}; files that this command has written are complete"
        ) from error


def _give_up() -> None:
    """Drop results that cannot be written when Python ends, where it would print the error and change the exit code."""
    with contextlib.suppress(HpcgnnError, OSError, ValueError):
        sys.stdout.flush()


_COMMANDS = {
    "info": "Show versions, the MPI library, kernels, partitioners and threads of this installation.",
    "doctor": "Check MPI, cores, kernels, GPUs, links and folders on this machine or cluster, and suggest changes.",
    "convert": "Convert a graph from a file or a data set to graph.h5.",
    "partition": "Divide graph.h5 into parts and write parts.h5, with one part for each rank.",
    "plan": "Count the rows and bytes that each strategy sends, without training.",
    "show": "Print a summary of a graph, its parts, a checkpoint or a run.",
    "check": "Verify every value and every checksum of a file or a run.",
    "train": "Train a model on all ranks (under mpirun, srun or hpcgnn launch).",
    "bench": "Measure kernels and compare them with other libraries and with the limits of the machine.",
    "predict": "Write the scores of a trained model for every node, or for pairs of nodes.",
    "launch": "Run a command on MPI ranks: on this machine, on other hosts, or on virtual hosts.",
    "cluster": "Create and control virtual hosts on this machine, with links of a given speed.",
    "study": "Run many trainings from one specification, record them and report on them.",
    "model": "Fit a cost model to measured runs, and predict seconds, bytes and memory of other runs.",
    "report": "Write an HTML or Markdown report about runs or a study.",
}
# The laboratory's commands, which stand in a folder of its own: nothing imports it before one of them is called.
_OF_THE_LAB = {"bench", "launch", "cluster", "study", "model", "report"}
_INTERRUPTED = 130
# The launcher kills all ranks when one exits, so the rank that prints the message exits first.
_GRACE_SECONDS = 1.0


class _LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        with importing():
            folder = "hpcgnn.lab.cli" if cmd_name in _OF_THE_LAB else "hpcgnn.cli"
            module = "show" if cmd_name == "check" else cmd_name
            return getattr(importlib.import_module(f"{folder}.{module}"), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], _COMMANDS)
            raise click.UsageError(error.message + (f" Did you mean {near}?" if near else ""), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(version.in_words())
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Print the version and the commit, and exit.")  # fmt: skip
def cli() -> None:
    """Full-batch training of graph neural networks over MPI.

    Convert a graph to graph.h5, divide it into one part for each MPI rank, and train on the parts. Exit codes: 0 for success, 1
    for a problem with files, the machine or the training, 2 for a wrong command line, 130 after SIGINT or SIGTERM.

    \b
    Example
      hpcgnn convert digits digits.h5
      hpcgnn partition digits.h5 parts.h5 --parts 4
      mpirun -n 4 hpcgnn train parts.h5 --out run
    """


def main() -> None:
    """Run the command line. This function never returns."""
    set_up_streams()
    # With colorama installed, numba would write colour codes at exit, even if stdout is a file.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    # Listen before anything else, because an early SIGUSR1 would kill the rank; launchers stop ranks with SIGTERM.
    stop = StopRequest().listen()
    stop.listen_to_interruptions(lambda: _say_interrupted_and_leave(stop))
    try:
        code = _run(stop)
        answer_interruptions(lambda *_: os._exit(_INTERRUPTED))  # Python's exit prints exceptions, and goes on
    except KeyboardInterrupt:
        _leave_interrupted(stop)
    sys.exit(code)


def _run(stop: StopRequest) -> int:
    """Run the command and return its exit code. After an error, this function does not return."""
    try:
        process.check_cache_folders()
        code = cli.main(standalone_mode=False, obj=stop)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # click makes an Abort of KeyboardInterrupt
        if stop.interrupted or isinstance(error, click.exceptions.Abort):
            _leave_interrupted(stop)
        _leave_after(error)
    finally:
        stop.ignore()


def _leave_after(error: Exception) -> NoReturn:
    if not isinstance(error, HpcgnnError | click.ClickException) and (sentence := _sentence_of(error)):
        error = HpcgnnError(sentence)
    if isinstance(error, HpcgnnError | click.ClickException):
        # The launcher's SIGTERM, or Ctrl-C, ends this rank without another message.
        answer_interruptions(signal.SIG_DFL)
    if isinstance(error, click.ClickException):
        _leave_before_mpi(error)
    if isinstance(error, HpcgnnError):
        _leave_with(error)
    sys.excepthook(type(error), error, error.__traceback__)
    job.abort_if_parallel(1)
    sys.exit(1)


def _sentence_of(error: Exception) -> str:
    """The sentence for an error that other libraries raised; empty for a bug, which keeps its traceback."""
    if said := job.mpi_problem(error):
        return f"MPI failed: {said}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{quoted(os.fsdecode(error.filename or ''))} is too long for the name of a file: give a shorter one"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is torch's RuntimeError
        details = str(error).splitlines()[0] if str(error) else "without further details"
        return f"out of memory ({details}): use more ranks or a smaller --hidden"
    if type(error).__name__ == "OutOfMemoryError":  # torch's error of a GPU, recognised without importing torch
        # The first sentences of torch's message have the numbers; the advice behind them is left out.
        sentences = (str(error).splitlines() or ["without further details"])[0].split(". ")
        return f"out of memory on the GPU ({'. '.join(sentences[:5])}): use more ranks, a smaller --hidden, or --device cpu"
    return ""


def _say(sentence: str) -> None:
    """Print a whole line in one write, because ranks share stderr; ``print`` makes two writes under ``python -u``."""
    sys.stderr.write(f"hpcgnn: {printable(sentence)}\n")
    sys.stderr.flush()


def _leave_before_mpi(error: click.ClickException) -> NoReturn:
    """Exit after a mistake in the command line. Every rank finds it, and one of them prints it."""
    if job.launcher_rank() == 0:
        usage = io.StringIO()
        error.show(usage)
        sys.stderr.write(printable(usage.getvalue(), keep="\n"))
    else:
        time.sleep(_GRACE_SECONDS)  # the launcher may kill the other ranks as soon as one leaves
    sys.exit(error.exit_code)


def _leave_with(error: HpcgnnError) -> NoReturn:
    rank = job.launcher_rank()
    if error.agreed:
        if rank == 0:
            _say(f"error: {error}")
        sys.exit(1)  # through MPI_Finalize, where the ranks meet
    where = f" on rank {rank}" if job.is_parallel() or rank else ""
    _say(f"error{where}: {error}")
    if isinstance(error, StalledError):
        time.sleep(error.grace_seconds)  # the first abort ends all ranks, and each should print what it waited for
    job.abort_if_parallel(1)
    sys.exit(1)


def _leave_interrupted(stop: StopRequest) -> NoReturn:
    """Exit at once, without MPI_Finalize, which the other ranks may never reach. Launchers may repeat the signal meanwhile."""
    answer_interruptions(signal.SIG_IGN)
    _say_interrupted_and_leave(stop)


def _say_interrupted_and_leave(stop: StopRequest) -> NoReturn:
    """The same, in any thread."""
    if job.launcher_rank() == 0:
        advice = stop.advice()
        _say(f"stopped by a signal{': ' if advice else ''}{advice}")
    else:
        time.sleep(_GRACE_SECONDS / 2)
    os._exit(_INTERRUPTED)
