"""MPI's launcher, and the flags with which it starts ranks on this machine. Imports neither torch nor MPI.

The launcher is ``$MPIEXEC`` if set, else the ``mpiexec`` beside the program, as mpi4py prefers the library of its own
environment, else the one on PATH. Open MPI and MPICH (Hydra) are known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcgnn.base.errors import HpcgnnError

_LOG = logging.getLogger("hpcgnn")
_ENV = "/usr/bin/env"  # becomes the launcher: the process, its signals and its exit code are the same
_OPEN_MPI, _HYDRA = ("Open MPI", "OpenRTE", "open-mpi"), "HYDRA"
# Open MPI hands these to ranks on other hosts if it is told; Hydra hands on everything.
_HANDED_ON = ("OMP_", "HPCGNN_")


@dataclasses.dataclass(frozen=True)
class Placing:
    """The placement of ranks on hosts and cores.

    bind: each rank is bound to cores of its own, because the hosts belong to this job: two bound jobs on a shared machine would
    use the same cores. ranks_per_host: None: the launcher chooses, or all are on one host if they are bound. hostfile: file of
    the hosts, one in each line; needs ``ranks_per_host``. None: this host, or those of the batch system's job. virtual: ranks run
    on the hosts of a virtual cluster, which needs Open MPI.
    """

    bind: bool = False
    ranks_per_host: int | None = None
    hostfile: str | None = None
    virtual: bool = False


def command(
    ranks: int, threads: int | None = None, placing: Placing | None = None, program: str = sys.executable
) -> list[str]:
    """The words before ``program`` and its arguments that run it on ``ranks`` ranks; they set ``OMP_NUM_THREADS``, too.

    threads: OpenMP threads of each rank. None: ``OMP_NUM_THREADS``, else the cores divided by the ranks of a host. Raises
    HpcgnnError if there is no such program, or no launcher that works and can place ranks like this.
    """
    placing = placing or Placing()
    if placing.hostfile and not placing.ranks_per_host:
        raise HpcgnnError("--hostfile needs the number of ranks on each host: give --ranks-per-host")
    here, cores = placing.ranks_per_host or ranks, usable_cores()
    threads = threads or _threads_of_environment() or max(cores // here, 1)
    crowded = here * threads > cores
    if placing.bind:
        placing = dataclasses.replace(placing, bind=not crowded, ranks_per_host=here)
        if crowded:
            sentence = "%d ranks with %d threads each have only %d cores on this host: ranks are not bound to cores"
            _LOG.warning(sentence, here, threads, cores)
    launcher = find_launcher(program)
    version = version_of(launcher)
    if any(name in version for name in _OPEN_MPI):
        flags = open_mpi_flags(placing, threads, crowded, is_root=os.geteuid() == 0, variables=os.environ)
    elif placing.virtual:
        raise HpcgnnError(
            f"{launcher} is not Open MPI's launcher, but virtual hosts need Open MPI: put its mpiexec first on PATH"
        )
    else:
        flags = hydra_flags(placing, threads) if _HYDRA in version else []
    return [_ENV, f"OMP_NUM_THREADS={threads}", launcher, *flags, "-n", str(ranks)]


def run(line: Sequence[str]) -> NoReturn:
    """Replace this process with the launcher of a whole command line, which then gets the signals and sets the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the new program would, too
        signal.signal(number, signal.SIG_DFL)
    os.execv(line[0], list(line))  # noqa: S606 - the launcher is what was asked for


@contextlib.contextmanager
def started(line: Sequence[str], grace_seconds: float, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a command, and end it at the end of the ``with`` block if it still runs: with SIGTERM, which a launcher passes on to
    its ranks, and its process group with SIGKILL ``grace_seconds`` later. options: those of :class:`subprocess.Popen`."""
    # In a process group of its own, so that Ctrl-C does not reach it directly: this process ends it. Not in a session of its own:
    # Linux shares cores between sessions, and one whose ranks spin can keep this process off them for a minute.
    process = subprocess.Popen(line, process_group=0, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=grace_seconds)  # reads pipes, because a full one would stop the command
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def of_this_installation(words: Sequence[str]) -> list[str]:
    """``words``, in which a first ``python`` or ``hpcgnn`` that is not on PATH becomes that of this installation.

    Another program on PATH becomes its full path: Open MPI's launcher, called by its own full path, puts its folder before a
    virtual environment's on the ranks' PATH.
    """
    own = {"python": [sys.executable], "hpcgnn": [sys.executable, "-m", "hpcgnn"]}
    first, *others = words
    found = shutil.which(first)
    return [*([found] if found else own.get(first, [first])), *others]


def usable_cores() -> int:
    """Number of physical cores with a CPU that this process may use; two threads on one core would share its arithmetic units."""
    return len({core_of(cpu) for cpu in os.sched_getaffinity(0)})


def core_of(cpu: int) -> int:
    """The physical core of a logical CPU, as the lowest number of the core's CPUs."""
    try:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        return int(re.split("[,-]", siblings.strip())[0])
    except (OSError, ValueError):
        return cpu


def find_launcher(program: str) -> str:
    """The launcher that belongs to ``program``, a name on PATH or a path. Raises HpcgnnError if one of the two does not exist."""
    place = shutil.which(program)
    if not place:
        raise HpcgnnError(f"there is no command {program}: give a program on PATH, or a path")
    beside = shutil.which("mpiexec", path=os.path.dirname(place))
    found = os.environ.get("MPIEXEC") or beside or shutil.which("mpiexec") or shutil.which("mpirun")
    if not found:
        raise HpcgnnError("no mpiexec was found: install an MPI, or `pip install mpich`")
    return found


def open_mpi_flags(
    placing: Placing, threads: int, crowded: bool, *, is_root: bool, variables: Iterable[str]
) -> list[str]:
    """Open MPI's flags. crowded: a host has fewer cores than its ranks have threads. variables: names of environment variables,
    of which those for this program are passed to other hosts."""
    flags = ["--allow-run-as-root"] if is_root else []
    if placing.hostfile:
        flags += ["--hostfile", placing.hostfile]
    flags += ["--bind-to", "core" if placing.bind else "none"]
    if placing.ranks_per_host:
        flags += ["--map-by", f"ppr:{placing.ranks_per_host}:node" + (f":PE={threads}" if placing.bind else "")]
    if crowded:  # a rank that waits for a message would otherwise spin on the core that the sender needs
        flags += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    if placing.virtual:  # called by its full path, it would put its folder before a virtual environment's on PATH
        flags.append("--noprefix")
    # OMP_NUM_THREADS is not in `variables`: the command line sets it.
    handed_on = {name for name in variables if name.startswith(_HANDED_ON)} | {"OMP_NUM_THREADS"}
    return flags + [word for name in sorted(handed_on) for word in ("-x", name)]


def hydra_flags(placing: Placing, threads: int) -> list[str]:
    """Hydra's flags."""
    flags = ["-f", placing.hostfile, "-ppn", str(placing.ranks_per_host)] if placing.hostfile else []
    return flags + (["-bind-to", f"core:{threads}"] if placing.bind else [])


def _threads_of_environment() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text and not (text.isdecimal() and int(text)):
        raise HpcgnnError(
            f"OMP_NUM_THREADS is {text!r}, which is not a number of threads: set it to one, or give -t THREADS"
        )
    return int(text) if text else None


def version_of(launcher: str) -> str:
    """The output of a launcher's ``--version``. Raises HpcgnnError if it does not work."""
    try:
        asked = subprocess.run([launcher, "--version"], capture_output=True, check=False)
    except OSError as error:
        raise HpcgnnError(f"{launcher} cannot be started: {error.strerror}") from error
    said = (asked.stdout + asked.stderr).decode(errors="replace")
    if asked.returncode:
        raise HpcgnnError(f"`{launcher} --version` failed: {' '.join(said.split())}")
    return said


SLURM, MPIRUN = "slurm", "mpirun"
JOB_SCRIPTS = {SLURM: "slurm.sbatch", MPIRUN: "mpirun.sh"}
_PACKAGE = Path(__file__).parent.parent
# setup.py makes the first folder; a checkout has the second.
_FOLDERS = (_PACKAGE / "launch" / "jobs", _PACKAGE.parent / "jobs")


def job_script(system: str) -> Path:
    """The job script for a system, one of :data:`JOB_SCRIPTS`. Raises HpcgnnError if this installation lacks it."""
    paths = [folder / JOB_SCRIPTS[system] for folder in _FOLDERS]
    for path in paths:
        if path.is_file():
            return path
    raise HpcgnnError(f"this installation lacks the job script {paths[0]}: install hpcgnn again")
