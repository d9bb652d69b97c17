"""Several virtual hosts on one machine, on which Open MPI starts a job's ranks as it would over ssh (docs/virtual_cluster.md)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.lab.virtual.network import CONTROL_SUBNET, LINK, Network
from hpcgnn.launch import mpiexec

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
        said = "exists already: remove it with `hpcgnn cluster down`, or choose another --name"
        raise HpcgnnError(f"cluster {network.name} {said}")
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


STATE = Path("/run")  # only root may write it, a reboot clears it like the namespaces, and its paths need no quoting
_AGENT = Path(__file__).with_name("agent.sh")
_GRACE_SECONDS = 10.0  # Open MPI gives ranks one second from SIGTERM to SIGKILL, and then ends its daemons


class Interrupted(Exception):
    """The user, or a batch system, has asked this process to end."""


class Stop:
    """Remembers SIGINT, SIGTERM and SIGHUP instead of raising at once, so that a change that has begun is finished."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal has come."""
        if self.signal:
            raise Interrupted


def state_folder(name: str) -> Path:
    """The folder of a cluster's running jobs."""
    return STATE / f"virtual_cluster.{name}"


def run_job(network: Network, line: list[str], placement: str, shared_memory: str, stop: Stop) -> int:
    """Run a job on ranks spread evenly over the hosts, and return its exit code. SIGUSR1 is passed on to the ranks.

    line: the launcher, its flags for virtual hosts, and the command. placement: with ``block``, ranks 0, 1, ... are on the first
    host; with ``cyclic``, rank 1 is on the second. shared_memory: size of each host's /dev/shm, as ``mount`` writes it.
    """
    folder = state_folder(network.name)
    folder.mkdir(mode=0o700, exist_ok=True)
    session = Path(tempfile.mkdtemp(prefix="job.", dir=folder))
    (session / "hosts").write_text("".join(f"{host}\n" for host in network.hosts))
    (session / "agent").symlink_to(_AGENT)
    try:
        inside = ["ip", "netns", "exec", network.switch, *line]
        environment = os.environ | launcher_settings(session, placement, shared_memory)
        with mpiexec.started(inside, _GRACE_SECONDS, env=environment) as process:
            signal.signal(signal.SIGUSR1, lambda number, _: process.send_signal(number))
            while not stop.signal:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=0.2)
                    return code if code >= 0 else 128 - code
        raise Interrupted
    finally:
        network.kill(mark=str(session))
        shutil.rmtree(session, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another job's session is in it
            folder.rmdir()


def launcher_settings(session: Path, placement: str, shared_memory: str) -> dict[str, str]:
    """The environment variables with which Open MPI starts ranks on the hosts; its agent passes on all others."""
    parameters = {
        "plm_rsh_agent": f"bash {session}/agent",
        "orte_default_hostfile": str(session / "hosts"),
        "orte_tmpdir_base": str(session),
        # Linux shares cores between sessions: one whose ranks spin can keep the process that waits for them off for a minute.
        "orte_leave_session_attached": "1",
        "oob_tcp_if_include": "control",
        # Between hosts, ranks use TCP over the data network only, and no transport that looks for other interfaces. Within a
        # host they use shared memory, which other hosts cannot reach: each has a host name and a /dev/shm of its own.
        "pml": "ob1",
        "btl": "tcp,self,vader",
        "btl_tcp_if_include": LINK,
        "rmaps_base_mapping_policy": "node",
        "rmaps_base_ranking_policy": "slot" if placement == "block" else "node",
        # The hosts share this machine's cores, although each assumes that it has all of them.
        "rmaps_base_oversubscribe": "1",
        "mpi_yield_when_idle": "1",
        "hwloc_base_binding_policy": "none",
    }
    return {f"OMPI_MCA_{name}": value for name, value in parameters.items()} | {
        "VIRTUAL_CLUSTER_JOB": str(session),
        "VIRTUAL_CLUSTER_SHARED_MEMORY": shared_memory,
    }
