"""Several hosts with links of a given speed on one machine, for tests and benchmarks of what a network does to a job.

Hosts are network namespaces (`virtual_network.py`); Open MPI starts a job's ranks on them as it would over ssh. Needs
root, iproute2 and Open MPI. `docs/virtual_cluster.md` says what is real about it.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from virtual_jobs import Interrupted, Job, Stop, run_job, state_folder
from virtual_network import CONTROL_SUBNET, UNLIMITED, ClusterError, Network

DEFAULT_NAME = "hpcgnn"
DEFAULT_SUBNET = ipaddress.IPv4Network("10.77.0.0/24")
_REFUSED = 2
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


# -- the life of a cluster ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep other commands from making or removing the cluster; an abstract socket's name is free when its process ends."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0hpcgnn-virtual-cluster.{name}")
        except OSError as error:
            raise ClusterError(f"another process makes or owns cluster {name}: choose another --name") from error
        yield


def create(network: Network, hosts: int, subnet: ipaddress.IPv4Network, speed: str, stop: Stop) -> None:
    """Make the cluster, after removing what a killed command has left of it; removes it again when that fails."""
    if network.is_kept:
        raise ClusterError(f"cluster {network.name} is up: take it down first, or choose another --name")
    if hosts > subnet.num_addresses - 2:
        raise ClusterError(
            f"{subnet} has addresses for {subnet.num_addresses - 2} hosts, not {hosts}: choose another --subnet"
        )
    if subnet.overlaps(CONTROL_SUBNET):
        raise ClusterError(f"{CONTROL_SUBNET} is the launcher's own network: choose another --subnet")
    destroy(network)
    try:
        network.build(hosts, subnet, speed, stop.check)
        stop.check()
    except BaseException:
        destroy(network)
        raise


def destroy(network: Network) -> None:
    """Remove the cluster, its processes and their files, whatever there is."""
    network.remove()
    shutil.rmtree(state_folder(network.name), ignore_errors=True)


def existing(name: str) -> Network:
    """The cluster, which must be there."""
    network = Network(name)
    if not network.hosts or not network.exists:
        raise ClusterError(f"there is no cluster {name}: make one with `virtual_cluster up N --name {name}`")
    return network


# -- commands ----------------------------------------------------------------------------------------------------------


def up(arguments: argparse.Namespace, stop: Stop) -> int:
    """Make a cluster that stays until it is taken down."""
    network = Network(arguments.name)
    with locked(network.name):
        create(network, arguments.hosts, arguments.subnet, arguments.rate, stop)
        network.keep()
    print(summary(network))
    return 0


def down(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Remove a cluster and the processes on it; also what a killed command has left."""
    network = Network(arguments.name)
    with locked(network.name):
        destroy(network)
    return 0


def run(arguments: argparse.Namespace, stop: Stop) -> int:
    """Start an MPI job, one rank a host or more; its exit code is the command's.

    With --hosts, on a cluster made for it and removed at its end.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ClusterError("no command given")
    if not arguments.hosts:
        if arguments.rate or arguments.subnet:
            raise ClusterError(
                "--rate and --subnet are for a cluster made with --hosts: `virtual_cluster rate` changes another"
            )
        return run_and_count(existing(arguments.name), arguments, command, stop)
    network = Network(arguments.name)
    with locked(network.name):
        create(network, arguments.hosts, arguments.subnet or DEFAULT_SUBNET, arguments.rate or UNLIMITED, stop)
        try:
            return run_and_count(network, arguments, command, stop)
        finally:
            destroy(network)


def run_and_count(network: Network, arguments: argparse.Namespace, command: list[str], stop: Stop) -> int:
    """Run the job; with ``--bytes``, write what the interfaces counted meanwhile."""
    before = network.counters()
    ranks = arguments.ranks or len(network.hosts) * arguments.ranks_per_host
    job = Job(command, ranks, arguments.threads, arguments.placement, arguments.shared_memory)
    code = run_job(network, job, stop)
    if arguments.bytes:
        moved = {
            host: {name: value - before[host][name] for name, value in counted.items()}
            for host, counted in network.counters().items()
        }
        arguments.bytes.write_text(json.dumps(moved, indent=2) + "\n")
    return code


def change_rate(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Change the speed of all links, also under a running job."""
    existing(arguments.name).set_rate(arguments.rate)
    return 0


def cut(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Cut a host's link, until it is healed."""
    existing(arguments.name).set_link(arguments.host, up=False)
    return 0


def heal(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Mend a host's link."""
    existing(arguments.name).set_link(arguments.host, up=True)
    return 0


def show_bytes(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Show what each host's interface has sent (tx) and received (rx) since the cluster was made."""
    counters = existing(arguments.name).counters()
    if arguments.json:
        print(json.dumps(counters))
        return 0
    columns = list(next(iter(counters.values())))
    print(" ".join([f"{'host':<16}", *(f"{column.replace('_', ' '):>18}" for column in columns)]))
    for host, counted in counters.items():
        print(" ".join([f"{host:<16}", *(f"{counted[column]:>18,}" for column in columns)]))
    return 0


def status(arguments: argparse.Namespace, _stop: Stop) -> int:
    """Show the hosts, their addresses and which links are cut."""
    print(summary(existing(arguments.name)))
    return 0


def summary(network: Network) -> str:
    """The cluster in a line, and each host in one."""
    hosts = network.hosts
    lines = [
        f"cluster {network.name}: {len(hosts)} hosts, links of {network.rate()}, {len(network.processes())} processes"
    ]
    lines += [f"  {host:<16} {network.address(host):<18} {'cut' if network.is_cut(host) else 'up'}" for host in hosts]
    return "\n".join(lines)


# -- the command line --------------------------------------------------------------------------------------------------


def rate(text: str) -> str:
    """A link's speed as ``tc`` writes it, or ``unlimited``."""
    if text != UNLIMITED and not re.fullmatch(r"[1-9]\d*(kbit|mbit|gbit)", text):
        raise argparse.ArgumentTypeError(f"{text} is no rate such as 100mbit or 1gbit, nor {UNLIMITED}")
    return text


def size(text: str) -> str:
    """A size of memory as ``mount`` writes it, or its share of the machine's."""
    if not re.fullmatch(r"[1-9]\d*[kmg%]", text):
        raise argparse.ArgumentTypeError(f"{text} is no size such as 64m or 1g")
    return text


def subnet(text: str) -> ipaddress.IPv4Network:
    """A network for the hosts."""
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no network such as {DEFAULT_SUBNET}") from error


def positive(text: str) -> int:
    """A number from 1 on."""
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def cluster_name(text: str) -> str:
    """A cluster's name, of which its hosts' names are made."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", text):
        raise argparse.ArgumentTypeError(f"{text} is no name of up to 31 small letters, digits and hyphens")
    return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="virtual_cluster", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(function: Callable[[argparse.Namespace, Stop], int], name: str, example: str) -> argparse.ArgumentParser:
        about = inspect.cleandoc(function.__doc__ or "")
        command = commands.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            epilog=f"example:\n  tools/virtual_cluster {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(function=function)
        command.add_argument(
            "--name", type=cluster_name, default=DEFAULT_NAME, help="the cluster (default: %(default)s)"
        )
        return command

    speed = f"speed of the links: 100mbit, 1gbit, ... or {UNLIMITED}"
    command = add(up, "up", "up 4 --rate 100mbit")
    command.add_argument("hosts", type=positive, metavar="N", help="how many hosts")
    command.add_argument("--rate", type=rate, default=UNLIMITED, help=f"{speed} (the default)")
    command.add_argument("--subnet", type=subnet, default=DEFAULT_SUBNET, help="their addresses (default: %(default)s)")

    command = add(run, "run", "run --hosts 4 --rate 100mbit -- hpcgnn train parts.h5 --out run")
    ranks = command.add_mutually_exclusive_group()
    ranks.add_argument("-n", "--ranks", type=positive, help="how many ranks in all")
    ranks.add_argument(
        "--ranks-per-host", type=positive, default=1, metavar="R", help="how many on each host (default: %(default)s)"
    )
    command.add_argument(
        "--placement",
        choices=("block", "cyclic"),
        default="block",
        help="ranks 0, 1, ... on the first host, or on one host after another (default: %(default)s)",
    )
    command.add_argument("-t", "--threads", type=positive, help="threads of each (default: as tools/mpiexec.sh does)")
    command.add_argument("--hosts", type=positive, metavar="N", help="make a cluster of N hosts for this job alone")
    command.add_argument("--rate", type=rate, help=f"with --hosts: {speed} (the default)")
    command.add_argument("--subnet", type=subnet, help=f"with --hosts: their addresses (default: {DEFAULT_SUBNET})")
    command.add_argument(
        "--shared-memory",
        type=size,
        default="50%",
        metavar="SIZE",
        help="of each host's /dev/shm: 64m, 1g, ... (default: %(default)s)",
    )
    command.add_argument("--bytes", type=Path, metavar="FILE", help="write what the hosts sent and received, as JSON")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what each rank runs")

    add(change_rate, "rate", "rate 1gbit").add_argument("rate", type=rate, help=speed)
    for function, name in ((cut, "cut"), (heal, "heal")):
        add(function, name, f"{name} 2").add_argument("host", metavar="HOST", help="the host's name or number")
    add(show_bytes, "bytes", "bytes --json").add_argument(
        "--json", action="store_true", help="one JSON object, by host"
    )
    add(status, "status", "status")
    add(down, "down", "down")
    return top


def require_rights() -> None:
    """Raise unless this process may make network namespaces, and has the commands for it."""
    fields = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    capabilities = int(fields["CapEff"], 16)
    if os.geteuid() != 0 or any(not capabilities >> bit & 1 for bit in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)):
        raise ClusterError(
            "needs root with the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN, to make network namespaces"
        )
    if missing := [program for program in ("ip", "tc") if not shutil.which(program)]:
        raise ClusterError(f"found no {' and no '.join(missing)}: install iproute2 (make deps-debian)")


def main() -> None:
    """Run the command line; never returns."""
    arguments = parser().parse_args()
    stop = Stop()
    try:
        require_rights()
        sys.exit(arguments.function(arguments, stop))
    except ClusterError as error:
        # A signal that also reached a child may be why that failed.
        if not stop.signal:
            print(f"virtual_cluster: {error}", file=sys.stderr)
            sys.exit(_REFUSED)
    except Interrupted:
        pass
    print("virtual_cluster: stopped", file=sys.stderr)
    sys.exit(128 + stop.signal)
