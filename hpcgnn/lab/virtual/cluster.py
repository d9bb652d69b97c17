"""Several virtual hosts on one machine, with links of a given speed, for tests and benchmarks of a network's effect on a job.

Hosts are network namespaces (``virtual_network.py``); Open MPI starts a job's ranks on them as it would over ssh
(``virtual_jobs.py``). This needs root, iproute2 and Open MPI. ``docs/virtual_cluster.md`` says which parts are real.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.lab.virtual.jobs import Stop, state_folder
from hpcgnn.lab.virtual.network import CONTROL_SUBNET, Network

DEFAULT_NAME = "hpcgnn"
DEFAULT_SUBNET = "10.77.0.0/24"
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


def check_rights() -> None:
    """Raise HpcgnnError unless this process may make network namespaces, and the commands for that are installed."""
    fields = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    capabilities = int(fields["CapEff"], 16)
    if os.geteuid() != 0 or any(not capabilities >> bit & 1 for bit in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)):
        raise HpcgnnError(
            "virtual hosts need root with the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN, to make network namespaces"
        )
    if missing := [program for program in ("ip", "tc") if not shutil.which(program)]:
        raise HpcgnnError(f"{' and '.join(missing)} cannot be found: install iproute2")


def check_name(text: str) -> str:
    """Return a cluster's name, with which the names of its hosts begin. Raises HpcgnnError unless it is valid."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", text):
        raise HpcgnnError(f"{quoted(text)} is not a name of at most 31 lower-case letters, digits and hyphens")
    return text


def check_size(text: str) -> str:
    """Return a size of memory as ``mount`` writes it: in k, m or g, or as a percentage. Raises HpcgnnError for anything else."""
    if not re.fullmatch(r"[1-9]\d*[kmg%]", text):
        raise HpcgnnError(f"{quoted(text)} is not a size such as 64m, 1g or 50%")
    return text


def check_subnet(text: str) -> ipaddress.IPv4Network:
    """The network of the hosts' addresses. Raises HpcgnnError if ``text`` is no network."""
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise HpcgnnError(f"{quoted(text)} is not a network such as {DEFAULT_SUBNET}") from error


@contextlib.contextmanager
def locked(name: str) -> Iterator[Network]:
    """Keep other commands from making or removing the cluster. The lock is an abstract socket, whose name the system frees when
    this process ends."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0hpcgnn-virtual-cluster.{name}")
        except OSError as error:
            raise HpcgnnError(f"another process is using the cluster {name}: choose another --name") from error
        yield Network(name)


@contextlib.contextmanager
def passing(name: str, hosts: int, subnet: ipaddress.IPv4Network, rate: str, stop: Stop) -> Iterator[Network]:
    """A cluster that exists for the body of a ``with`` statement, and is then removed."""
    with locked(name) as network:
        create(network, hosts, subnet, rate, stop)
        try:
            yield network
        finally:
            destroy(network)


def create(network: Network, hosts: int, subnet: ipaddress.IPv4Network, rate: str, stop: Stop) -> None:
    """Make the cluster, after removing the remains of a killed command; if that fails, remove it again."""
    if network.is_kept:
        raise HpcgnnError(
            f"cluster {network.name} exists already: remove it with `hpcgnn cluster down`, or choose another --name"
        )
    if hosts > subnet.num_addresses - 2:
        raise HpcgnnError(
            f"{subnet} has addresses for {subnet.num_addresses - 2} hosts, not {hosts}: choose another --subnet"
        )
    if subnet.overlaps(CONTROL_SUBNET):
        raise HpcgnnError(f"{CONTROL_SUBNET} is reserved for the launcher: choose another --subnet")
    destroy(network)
    try:
        network.build(hosts, subnet, rate, stop.check)
        stop.check()
    except BaseException:
        destroy(network)
        raise


def destroy(network: Network) -> None:
    """Remove the cluster, its processes and their files, as far as they exist."""
    network.remove()
    shutil.rmtree(state_folder(network.name), ignore_errors=True)


def existing(name: str) -> Network:
    """The cluster called ``name``. Raises HpcgnnError if it does not exist."""
    network = Network(name)
    if not network.hosts or not network.exists:
        raise HpcgnnError(f"there is no cluster {name}: create it with `hpcgnn cluster up HOSTS --name {name}`")
    return network
