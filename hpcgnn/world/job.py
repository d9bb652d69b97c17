"""This process's place in its job, as far as it is known without starting MPI, and the abort of the whole job."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time

from hpcgnn.world.progress import PROGRESS

_PRINTED_BEFORE_ABORT_SECONDS = 0.25  # MPICH's launcher drops what a rank printed just before it aborts

# All ranks may leave by the same decision; each of them should have printed why before the first one ends the job.
_GRACE_SECONDS = 1.0


def launcher_rank() -> int:
    """This process's rank as the launcher tells it in the environment, without initialising MPI; 0 outside a launcher."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def is_parallel() -> bool:
    """Return whether MPI runs in this process with more than one rank."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1


def mpi_problem(error: BaseException) -> str:
    """MPI's description of an error that it has raised; an empty string for any other error."""
    mpi = sys.modules.get("mpi4py.MPI")
    return error.Get_error_string() if mpi is not None and isinstance(error, mpi.Exception) else ""


def flush_output() -> None:
    """Write what was printed, if it can be written: a job must end also where its output is closed or its disk is full."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def abort_if_parallel(exit_code: int) -> None:
    """End all ranks of the job at once if MPI runs with more than one rank; return otherwise."""
    if is_parallel():
        flush_output()
        time.sleep(_PRINTED_BEFORE_ABORT_SECONDS)
        PROGRESS.take_over()
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(exit_code)


def abort_at_exit(exit_code: int, grace_seconds: float = 0.0) -> None:
    """As :func:`abort_if_parallel`, once Python has ended in this process: files are closed, and functions of ``atexit`` run.

    grace_seconds: the time that other ranks have at least for what they want to print.
    """
    if is_parallel():
        PROGRESS.take_over()
        sys.modules["mpi4py.MPI"]._set_abort_status(exit_code)  # as ``python -m mpi4py`` does
        atexit.register(time.sleep, max(grace_seconds, _GRACE_SECONDS))
