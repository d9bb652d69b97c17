"""MPI jobs on the hosts of a virtual cluster: the placement of ranks, the networks that they use, and the end of a job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import FrameType

from hpcgnn.lab.virtual.network import Network

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


@dataclasses.dataclass(frozen=True)
class Job:
    """A job to start.

    line: the launcher, its flags for virtual hosts, and the command. placement: ``block``: ranks 0, 1, ... are on the first host;
    ``cyclic``: rank 0 is on the first host, rank 1 on the second, and so on. shared_memory: size of each host's /dev/shm, as
    ``mount`` writes it.
    """

    line: list[str]
    placement: str = "block"
    shared_memory: str = "50%"


def run_job(network: Network, job: Job, stop: Stop) -> int:
    """Run a job on ranks spread evenly over the hosts, and return its exit code. SIGUSR1 is passed on to the ranks."""
    folder = state_folder(network.name)
    folder.mkdir(mode=0o700, exist_ok=True)
    session = Path(tempfile.mkdtemp(prefix="job.", dir=folder))
    (session / "hosts").write_text("".join(f"{host}\n" for host in network.hosts))
    (session / "agent").symlink_to(_AGENT)
    try:
        # In a process group of its own, so that Ctrl-C does not reach the launcher directly: this process ends it.
        process = subprocess.Popen(
            ["ip", "netns", "exec", network.switch, *job.line],  # noqa: S607 - its folder differs, and is on root's PATH
            env=os.environ | launcher_settings(session, job),
            process_group=0,
        )
        signal.signal(signal.SIGUSR1, lambda number, _: process.send_signal(number))
        return wait(process, stop)
    finally:
        network.kill(mark=str(session))
        shutil.rmtree(session, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another job's session is in it
            folder.rmdir()


def launcher_settings(session: Path, job: Job) -> dict[str, str]:
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
        "btl_tcp_if_include": "eth0",
        "rmaps_base_mapping_policy": "node",
        "rmaps_base_ranking_policy": "slot" if job.placement == "block" else "node",
        # The hosts share this machine's cores, although each assumes that it has all of them.
        "rmaps_base_oversubscribe": "1",
        "mpi_yield_when_idle": "1",
        "hwloc_base_binding_policy": "none",
    }
    return {f"OMPI_MCA_{name}": value for name, value in parameters.items()} | {
        "VIRTUAL_CLUSTER_JOB": str(session),
        "VIRTUAL_CLUSTER_SHARED_MEMORY": job.shared_memory,
    }


def wait(process: subprocess.Popen[bytes], stop: Stop) -> int:
    """Wait for the launcher, and return its exit code. If a signal comes, end the launcher so that it ends its ranks."""
    while not stop.signal:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=0.2)
            return code if code >= 0 else 128 - code
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_SECONDS)
    process.kill()
    process.wait()
    raise Interrupted
