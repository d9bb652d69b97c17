"""``hpcgnn launch``: a command on several MPI ranks, on real or on virtual hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli.options import SectionedCommand
from hpcgnn.lab.virtual import cluster as virtual_cluster
from hpcgnn.lab.virtual.cluster import Interrupted, Stop, run_job
from hpcgnn.lab.virtual.network import UNLIMITED, Network, check_rate
from hpcgnn.launch import mpiexec

SPEED = f"Speed of each link, such as 100mbit or 1gbit (bits per second), or {UNLIMITED}."
_SECTIONS = {
    "Ranks": ("ranks", "threads", "ranks_per_host"),
    "Real hosts": ("bind", "hostfile"),
    "Virtual hosts": ("hosts", "rate", "placement", "shared_memory", "counts", "subnet", "name"),
    "In place of a run": ("dry_run", "print_job"),
}


class Refused(click.ClickException):
    """A request that cannot be met: exit code 2 and one sentence."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence on stderr."""
        click.echo(f"hpcgnn: error: {self.message}", file=file or sys.stderr)


class Checked(click.ParamType):
    """A type of option whose values a function converts; it raises HpcgnnError for values that are not allowed."""

    name = "text"

    def __init__(self, check: Callable[[str], Any]) -> None:
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The result of the function."""
        with refusing(f"{max(param.opts, key=len)}: " if param else ""):
            return self._check(value)


@contextlib.contextmanager
def refusing(beginning: str = "") -> Iterator[None]:
    """Turn HpcgnnError into :class:`Refused`, a mistake in the command line. beginning: the first words of the sentence."""
    try:
        yield
    except HpcgnnError as error:
        raise Refused(f"{beginning}{error}") from error


@contextlib.contextmanager
def on_virtual_hosts() -> Iterator[Stop]:
    """As :func:`refusing`, for changes of virtual hosts. A signal ends them only where nothing is left half-made."""
    stop = Stop()
    try:
        virtual_cluster.check_rights()
        yield stop
    except (HpcgnnError, Interrupted) as error:
        if not stop.signal:  # a child may have failed because the signal reached it, too
            raise Refused(str(error)) from error
        click.echo("hpcgnn: stopped", err=True)
        sys.exit(128 + stop.signal)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The description of a job for `hpcgnn launch` and `hpcgnn cluster run`. counts: the file for the bytes of each host."""

    command: tuple[str, ...]
    ranks: int | None
    threads: int | None
    ranks_per_host: int | None
    placement: str
    shared_memory: str
    counts: Path | None

    def line(self, ranks: int | None, placing: mpiexec.Placing) -> list[str]:
        """The launcher's whole command line."""
        if not ranks:
            raise HpcgnnError("the number of ranks is missing: give -n RANKS")
        words = mpiexec.of_this_installation(self.command)
        return [*mpiexec.command(ranks, self.threads, placing, words[0]), *words]

    def line_on(self, hosts: int) -> list[str]:
        """The launcher's command line for a number of virtual hosts."""
        usual = hosts * (self.ranks_per_host or 1)
        if self.ranks_per_host and self.ranks not in (None, usual):
            raise HpcgnnError(
                f"{hosts} hosts with {self.ranks_per_host} ranks each have {usual} ranks, not -n {self.ranks}: leave one of "
                "the options out"
            )
        return self.line(self.ranks or usual, mpiexec.Placing(virtual=True))

    def run_on(self, network: Network, line: list[str], stop: Stop) -> int:
        """Run a command line, and write the counts. Returns the exit code."""
        before = network.counters()
        code = run_job(network, line, self.placement, self.shared_memory, stop)
        if self.counts:
            after = network.counters().items()
            moved = {host: {name: value - before[host][name] for name, value in each.items()} for host, each in after}
            with whole_file.replacing(self.counts) as path:
                path.write_text(json.dumps(moved, indent=2) + "\n")
        return code


named = click.option(
    "--name", type=Checked(virtual_cluster.check_name), default=virtual_cluster.DEFAULT_NAME, show_default=True,
    metavar="NAME", help="Name of the cluster, if there are several.",
)  # fmt: skip
_OPTIONS = (
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
    click.option("-n", "--ranks", type=click.IntRange(1), metavar="RANKS", help="Total number of ranks."),
    click.option("-t", "--threads", type=click.IntRange(1), metavar="THREADS",
                 help="Number of OpenMP threads of each rank.  [default: OMP_NUM_THREADS, else the cores of the host divided by "
                      "its ranks]"),
    click.option("--ranks-per-host", type=click.IntRange(1), metavar="RANKS",
                 help="Number of ranks on each host.  [default on virtual hosts: 1]"),
    click.option("--placement", type=click.Choice(["block", "cyclic"]), default="block", show_default=True,
                 help="Placement of ranks on virtual hosts. block: ranks 0, 1, ... share the first host; cyclic: ranks are dealt "
                      "to the hosts in turn."),
    click.option("--shared-memory", type=Checked(virtual_cluster.check_size), metavar="SIZE", default="50%",
                 show_default=True, help="Size of /dev/shm on each virtual host, such as 64m, 1g, or a share of the memory."),
    click.option("--bytes", "counts", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="JSON file for the packets, bytes and payload bytes that each virtual host sends (tx) and receives (rx)."),
    named,
)  # fmt: skip
# Options behind COMMAND belong to COMMAND, with or without -- before it.
TAKES_A_COMMAND = {"allow_interspersed_args": False}


def of_a_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of :class:`Wanted`, and ``name``."""
    return functools.reduce(lambda found, option: option(found), reversed(_OPTIONS), function)


EXAMPLES = """\b
Examples:
  hpcgnn launch -n 4 -- hpcgnn train parts.h5 --out run
  hpcgnn launch --hosts 4 --rate 1gbit -- hpcgnn train parts.h5 --out run
  hpcgnn launch --print-job slurm > job.sbatch
"""


def _print_job(ctx: click.Context, _param: click.Parameter, system: str | None) -> None:
    if system is None or ctx.resilient_parsing:
        return
    click.echo(mpiexec.job_script(system).read_text(encoding="utf-8"), nl=False)
    ctx.exit()


@click.command(cls=SectionedCommand, sections=_SECTIONS, context_settings=TAKES_A_COMMAND, epilog=EXAMPLES)
@of_a_job
@click.option(
    "--bind", is_flag=True, help="Bind each rank to cores of its own; for nodes that this job does not share."
)
@click.option("--hostfile", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="File with the names of the hosts, one a line; needs --ranks-per-host.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(1), metavar="HOSTS",
              help="Number of virtual hosts to create for this command; needs root (docs/virtual_cluster.md).")  # fmt: skip
@click.option("--rate", type=Checked(check_rate), default=UNLIMITED, show_default=True, metavar="RATE", help=SPEED)
@click.option("--subnet", type=Checked(virtual_cluster.check_subnet), default=virtual_cluster.DEFAULT_SUBNET,
              show_default=True, metavar="NETWORK", help="Network for the addresses of the virtual hosts.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the launcher's command line and start nothing.")
@click.option("--print-job", type=click.Choice(list(mpiexec.JOB_SCRIPTS)), is_eager=True, expose_value=False,
              callback=_print_job,
              help="Print a job script and exit. The script converts and partitions a graph, trains, and resumes when it is "
                   "run again; its settings are at its top. slurm: for sbatch; mpirun: for this machine or the hosts of a "
                   "file.")  # fmt: skip
@click.pass_context
def launch(
    ctx: click.Context, bind: bool, hostfile: str | None, hosts: int | None, rate: str, subnet: ipaddress.IPv4Network, name: str,
    dry_run: bool, **wanted: Any,
) -> int:  # fmt: skip
    """Run COMMAND on MPI ranks: on this machine, on the hosts of a file, or on virtual hosts with links of a given speed.

    The launcher is $MPIEXEC, else the mpiexec beside COMMAND, else the mpiexec on PATH; hpcgnn adds the flags that this
    implementation of MPI needs. The exit code is that of COMMAND, and signals are passed on to the ranks. If PATH has no
    `python` or `hpcgnn`, those of this installation are used.

    The options --placement, --shared-memory, --bytes, --name, --rate and --subnet need --hosts; --bind and --hostfile are for
    real hosts.
    """
    job = Wanted(**wanted)
    with refusing():
        _check_given(ctx, hosts)
        real = mpiexec.Placing(bind, job.ranks_per_host, hostfile)
        line = job.line(job.ranks, real) if hosts is None else job.line_on(hosts)
        if job.counts:
            whole_file.check(job.counts)
    if dry_run:
        click.echo(shlex.join(line))
        return 0
    if hosts is None:
        mpiexec.run(line)
    with on_virtual_hosts() as stop, virtual_cluster.passing(name, hosts, subnet, rate, stop) as network:
        return job.run_on(network, line, stop)


def _check_given(ctx: click.Context, hosts: int | None) -> None:
    """Raise HpcgnnError if an option cannot be used with the hosts that were asked for."""
    useless, reason = _SECTIONS["Virtual hosts"], "is for virtual hosts and needs --hosts"
    if hosts is not None:
        useless, reason = (
            _SECTIONS["Real hosts"],
            "is for real hosts and cannot be used with --hosts: leave one of both out",
        )
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in useless and source is ParameterSource.COMMANDLINE:
            raise HpcgnnError(f"{parameter.opts[0]} {reason}")
