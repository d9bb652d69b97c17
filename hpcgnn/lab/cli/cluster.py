"""``hpcgnn cluster``: virtual hosts that exist until they are removed."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import click

from hpcgnn.base import whole_file
from hpcgnn.lab.cli.launch import SPEED, TAKES_A_COMMAND, Checked, Wanted, named, of_a_job, on_virtual_hosts
from hpcgnn.lab.study.tables import Table
from hpcgnn.lab.virtual.cluster import DEFAULT_SUBNET, check_subnet, create, destroy, existing, locked
from hpcgnn.lab.virtual.network import UNLIMITED, Network, check_rate


def _example(line: str) -> str:
    return f"\b\nExample\n  hpcgnn cluster {line}"


@click.group(epilog=_example("up 4 --rate 1gbit"))
def cluster() -> None:
    """Create and control virtual hosts on this machine, with links of a given speed.

    The hosts exist until `hpcgnn cluster down`. They need root, iproute2 and Open MPI. docs/virtual_cluster.md describes them and
    what differs from real hosts.
    """


@cluster.command(epilog=_example("up 4 --rate 100mbit"))
@click.argument("hosts", type=click.IntRange(1))
@click.option("--rate", type=Checked(check_rate), default=UNLIMITED, show_default=True, metavar="RATE", help=SPEED)
@click.option("--subnet", type=Checked(check_subnet), default=DEFAULT_SUBNET, show_default=True, metavar="NETWORK",
              help="Network for the addresses of the hosts.")  # fmt: skip
@named
def up(hosts: int, rate: str, subnet: ipaddress.IPv4Network, name: str) -> None:
    """Create HOSTS virtual hosts (a number)."""
    with on_virtual_hosts() as stop:
        with locked(name) as network:
            create(network, hosts, subnet, rate, stop)
            network.keep()
        _show(network)


@cluster.command(epilog=_example("down"))
@named
def down(name: str) -> None:
    """Remove the hosts, the processes on them, and the remains of a killed command."""
    with on_virtual_hosts(), locked(name) as network:
        destroy(network)


@cluster.command(context_settings=TAKES_A_COMMAND, epilog=_example("run -n 8 -- hpcgnn train parts-8.h5 --out run"))
@of_a_job
def run(name: str, **wanted: Any) -> int:
    """Run COMMAND on the hosts, with one or more ranks on each. The exit code is that of COMMAND."""
    job = Wanted(**wanted)
    with on_virtual_hosts() as stop:
        if job.counts:
            whole_file.check(job.counts)
        network = existing(name)
        return job.run_on(network, job.line_on(len(network.hosts)), stop)


@cluster.command(epilog=_example("rate 1gbit"))
@click.argument("rate", type=Checked(check_rate))
@named
def rate(rate: str, name: str) -> None:
    """Change the speed of all links to RATE, such as 100mbit or 1gbit, or unlimited. A job may be running."""
    with on_virtual_hosts():
        existing(name).set_rate(rate)


@cluster.command(epilog=_example("cut 2"))
@click.argument("host")
@named
def cut(host: str, name: str) -> None:
    """Cut the link of HOST (a name or a number) until `hpcgnn cluster heal`."""
    with on_virtual_hosts():
        existing(name).set_link(host, up=False)


@cluster.command(epilog=_example("heal 2"))
@click.argument("host")
@named
def heal(host: str, name: str) -> None:
    """Restore the link of HOST (a name or a number)."""
    with on_virtual_hosts():
        existing(name).set_link(host, up=True)


@cluster.command("bytes", epilog=_example("bytes --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table, by host.")
@named
def show_bytes(as_json: bool, name: str) -> None:
    """Show the bytes that each host has sent and received.

    Packets, bytes and payload bytes are counted since the creation of the host; tx is sent, rx is received.
    """
    with on_virtual_hosts():
        counters = existing(name).counters()
    if as_json:
        print(json.dumps(counters))
        return
    header = ("host", *(column.replace("_", " ") for column in next(iter(counters.values()))))
    rows = ((host, *(f"{count:,}" for count in counted.values())) for host, counted in counters.items())
    Table("", header, tuple(rows)).show()


@cluster.command(epilog=_example("status"))
@named
def status(name: str) -> None:
    """Show the hosts, their addresses, and the state of their links (up or cut)."""
    with on_virtual_hosts():
        _show(existing(name))


def _show(network: Network) -> None:
    """Print a line about the cluster, and a line about each host."""
    hosts, processes = network.hosts, len(network.processes())
    print(f"cluster {network.name}: {len(hosts)} hosts, links of {network.rate()}, {processes} processes")
    for host in hosts:
        print(f"  {host:<16} {network.address(host):<18} {'cut' if network.is_cut(host) else 'up'}")
