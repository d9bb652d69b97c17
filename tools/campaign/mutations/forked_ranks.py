"""A command on the ranks of a real mpirun, where each rank is a fork of this process, so that no rank has to import anything.

mpirun starts :mod:`rank_client` for each rank, which sends the environment of its rank to this process. A process of the same
user with that environment is accepted by MPI as that rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_CLIENT = Path(__file__).with_name("rank_client.py")
_RANK = "OMPI_COMM_WORLD_RANK"
_POLL_SECONDS = 0.01


def launcher() -> str | None:
    """Open MPI's launcher, the only one whose environment is known here; None if it is not installed."""
    found = shutil.which("mpirun")
    if found is None:
        return None
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found if "Open MPI" in about else None


def on_ranks(size: int, program: Callable[[], int], folders: list[str], ended: Callable[[int], None]) -> list[int]:
    """The exit codes (or minus the signals) of ``program`` on each rank, run in ``folders``; at its end it calls
    ``ended(rank)``.

    The stderr of each rank goes to ``stderr.RANK``, and then to stderr of this process, one rank after the other.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("ranks.sock")
    listener.listen(size)
    command = [str(launcher()), "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-q"]
    client = [sys.executable, "-S", "-E", str(_CLIENT), str(Path("ranks.sock").resolve())]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    job = subprocess.Popen([*command, "-n", str(size), *client], **quiet)  # type: ignore[call-overload]
    running: dict[int, tuple[int, socket.socket]] = {}
    codes: dict[int, int] = {}
    stopped: set[int] = set()
    while job.poll() is None or running:
        if select.select([listener], [], [], _POLL_SECONDS)[0]:
            place, _ = listener.accept()
            environment = json.loads(place.makefile().readline())
            rank = int(environment[_RANK])
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _be(rank, environment, program, folders[rank], ended)
            running[pid] = (rank, place)
        _look_after(running, codes, stopped)
    for rank in range(size):
        path = Path(f"stderr.{rank}")
        if path.exists():
            sys.stderr.write(path.read_text(errors="replace"))
    ended_it = max((code for rank, code in codes.items() if rank not in stopped), default=-signal.SIGKILL)
    return [ended_it if rank in stopped else codes.get(rank, -signal.SIGKILL) for rank in range(size)]


def _look_after(running: dict[int, tuple[int, socket.socket]], codes: dict[int, int], stopped: set[int]) -> None:
    """Report the ends of ranks to their clients, and end ranks whose clients are gone: mpirun kills all clients if one has
    failed.
    """
    for pid, (rank, place) in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            codes[rank] = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # mpirun may have ended it already
                place.send(struct.pack("i", codes[rank]))
            place.close()
            del running[pid]
        elif select.select([place], [], [], 0)[0] and not place.recv(1):
            stopped.add(rank)
            os.kill(pid, signal.SIGKILL)


def _be(
    rank: int, environment: dict[str, str], program: Callable[[], int], folder: str, ended: Callable[[int], None]
) -> None:
    """Become a rank, run the program, and exit."""
    code = 1
    try:
        os.dup2(os.open(f"stderr.{rank}", os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(os.open(f"stdout.{rank}", os.O_WRONLY | os.O_CREAT, 0o600), 1)
        os.environ.clear()
        os.environ.update(environment)
        home = Path.cwd()
        os.chdir(folder)
        code = program()
        os.chdir(home)
        ended(rank)
        end_mpi()
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def end_mpi() -> None:
    """Finalise MPI, if this process has entered it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def leave(code: int) -> NoReturn:
    """Exit a forked process, without the cleanup of its parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
