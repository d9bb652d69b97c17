"""``hpcgnn launch``: a command on so many ranks, here or on virtual hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource

from hpcgnn import whole_file
from hpcgnn.errors import HpcgnnError
from hpcgnn.launch import mpiexec, virtual_cluster
from hpcgnn.launch.virtual_jobs import Interrupted, Job, Stop, run_job
from hpcgnn.launch.virtual_network import UNLIMITED, Network, check_rate

SPEED = f"Speed of the links: 100mbit, 1gbit, ... or {UNLIMITED}."
_OF_VIRTUAL_HOSTS = ("rate", "subnet", "placement", "shared_memory", "counts", "name")
_OF_REAL_HOSTS = ("bind", "hostfile")


class Refused(click.ClickException):
    """A request that cannot be met as it was made."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it."""
        click.echo(f"hpcgnn: error: {self.message}", file=file or sys.stderr)


class Checked(click.ParamType):
    """The values that a function accepts; for others it raises HpcgnnError."""

    name = "text"

    def __init__(self, check: Callable[[str], Any]) -> None:
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The result of the function."""
        with refusing(f"{max(param.opts, key=len)}: " if param else ""):
            return self._check(value)


@contextlib.contextmanager
def refusing(beginning: str = "") -> Iterator[None]:
    """An error that a user can act on is a mistake in the command line. beginning: of the sentence."""
    try:
        yield
    except HpcgnnError as error:
        raise Refused(f"{beginning}{error}") from error


@contextlib.contextmanager
def on_virtual_hosts() -> Iterator[Stop]:
    """The same for what changes virtual hosts, which a signal may end only where nothing is left half-made."""
    stop = Stop()
    try:
        virtual_cluster.check_rights()
        yield stop
        return
    except HpcgnnError as error:
        if not stop.signal:  # a signal that also reached a child may be why that failed
            raise Refused(str(error)) from error
    except Interrupted:
        pass
    click.echo("hpcgnn: stopped", err=True)
    sys.exit(128 + stop.signal)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The description of a job for `hpcgnn launch` and `hpcgnn cluster run`. counts: where to write what interfaces counted."""

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
            raise HpcgnnError("say how many ranks: -n RANKS")
        words = mpiexec.of_this_installation(self.command)
        return [*mpiexec.command(ranks, self.threads, placing, words[0]), *words]

    def line_on(self, hosts: int) -> list[str]:
        """The same on so many virtual hosts."""
        usual = hosts * (self.ranks_per_host or 1)
        if self.ranks_per_host and self.ranks not in (None, usual):
            raise HpcgnnError(f"{hosts} hosts of {self.ranks_per_host} ranks have {usual}, not -n {self.ranks}")
        return self.line(self.ranks or usual, mpiexec.Placing(virtual=True))

    def run_on(self, network: Network, line: list[str], stop: Stop) -> int:
        """Run a line, and write the counts; returns its exit code."""
        before = network.counters()
        code = run_job(network, Job(line, self.placement, self.shared_memory), stop)
        if self.counts:
            moved = {
                host: {name: value - before[host][name] for name, value in counted.items()}
                for host, counted in network.counters().items()
            }
            with whole_file.replacing(self.counts) as path:
                path.write_text(json.dumps(moved, indent=2) + "\n")
        return code


named = click.option(
    "--name", type=Checked(virtual_cluster.check_name), default=virtual_cluster.DEFAULT_NAME, show_default=True,
    metavar="NAME", help="The cluster, beside others.",
)  # fmt: skip
_OPTIONS = (
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
    click.option("-n", "--ranks", type=click.IntRange(1), metavar="RANKS", help="How many ranks in all."),
    click.option("-t", "--threads", type=click.IntRange(1), metavar="THREADS",
                 help="OpenMP threads of each rank.  [default: OMP_NUM_THREADS, else the cores divided by the ranks]"),
    click.option("--ranks-per-host", type=click.IntRange(1), metavar="RANKS",
                 help="How many ranks on each host.  [default on virtual hosts: 1]"),
    click.option("--placement", type=click.Choice(["block", "cyclic"]), default="block", show_default=True,
                 help="Ranks 0, 1, ... on the first virtual host, or on one after another."),
    click.option("--shared-memory", type=Checked(virtual_cluster.check_size), metavar="SIZE", default="50%",
                 show_default=True, help="Of each virtual host's /dev/shm: 64m, 1g, ..."),
    click.option("--bytes", "counts", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Write what the virtual hosts sent and received, as JSON."),
    named,
)  # fmt: skip
# The command's own options are not ours, with or without -- before it.
TAKES_A_COMMAND = {"allow_interspersed_args": False}


def of_a_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of :class:`Wanted`, and ``name``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


EXAMPLES = """\b
Examples:
  hpcgnn launch -n 4 -- hpcgnn train parts.h5 --out run
  hpcgnn launch --hosts 4 --rate 1gbit -- hpcgnn train parts.h5 --out run
"""


@click.command(context_settings=TAKES_A_COMMAND, epilog=EXAMPLES)
@of_a_job
@click.option("--bind", is_flag=True, help="The cores are this job's: each rank gets its own.")
@click.option("--hostfile", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="The hosts, one a line; needs --ranks-per-host.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(1), metavar="HOSTS",
              help="Make so many virtual hosts for this command (root; docs/virtual_cluster.md).")  # fmt: skip
@click.option("--rate", type=Checked(check_rate), default=UNLIMITED, show_default=True, metavar="RATE", help=SPEED)
@click.option("--subnet", type=Checked(virtual_cluster.check_subnet), default=virtual_cluster.DEFAULT_SUBNET,
              show_default=True, metavar="NETWORK", help="The virtual hosts' addresses.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the launcher's command line and start nothing.")
@click.pass_context
def launch(
    ctx: click.Context,
    bind: bool,
    hostfile: str | None,
    hosts: int | None,
    rate: str,
    subnet: ipaddress.IPv4Network,
    name: str,
    dry_run: bool,
    **wanted: Any,
) -> int:
    """Run COMMAND on MPI ranks: on this machine, on hosts of a file, or on virtual hosts with links of a given speed.

    The flags are those that the MPI at hand needs: of $MPIEXEC, else of the mpiexec beside COMMAND, else of the one on PATH.
    The exit code is COMMAND's, and signals reach the ranks. `python` and `hpcgnn` are this installation's if PATH has none.
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
    """Raise HpcgnnError where an option is of no use to the hosts that were asked for."""
    useless, reason = (_OF_VIRTUAL_HOSTS, "needs --hosts") if hosts is None else (_OF_REAL_HOSTS, "has no --hosts")
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in useless and source is ParameterSource.COMMANDLINE:
            raise HpcgnnError(f"{parameter.opts[0]} {reason}")
