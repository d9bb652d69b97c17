"""This process in its job, without an import of MPI: its rank, the thread that lets MPI move data, and the abort of all ranks.

MPI moves large messages only while it is called, and between starting an exchange and waiting for it a rank computes local
aggregation and dense products, which do not call MPI. So one thread of each process tests the exchange under way a few thousand
times a second. It runs beside the computing threads, as these are in native code, which does not hold Python's lock. MPI is
initialised as ``MPI_THREAD_SERIALIZED``: the thread may call it only between :meth:`Progress.watch` and
:meth:`Progress.take_over`.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import functools
import os
import platform
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from hpcgnn.base.errors import HpcgnnError

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
    grace_seconds: the time that other ranks have at least for what they want to print."""
    if is_parallel():
        PROGRESS.take_over()
        sys.modules["mpi4py.MPI"]._set_abort_status(exit_code)  # as ``python -m mpi4py`` does
        atexit.register(time.sleep, max(grace_seconds, _GRACE_SECONDS))


# An MPI library hands the network some hundred KiB in each call. With pauses of this length it keeps up with 10 Gbit/s over
# TCP, and the calls take about 1 % of a core.
_TEST_PAUSE_SECONDS = 5e-4
_SLICE_NANOSECONDS = 100_000
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class Progress:
    """Calls a test repeatedly from a thread of its own, until the test returns True or :meth:`take_over` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the test is called
        self._wake = threading.Lock()  # the thread sleeps in its acquisition: an Event takes eight calls to do the same
        self._wake.acquire()
        self._test: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None

    def watch(self, test: Callable[[], bool]) -> None:
        """Call ``test`` until it returns True. From now to :meth:`take_over` no one else may call MPI."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mpi-progress", daemon=True)
            self._thread.start()
        with self._lock:  # otherwise the thread, which has just seen the end of the last test, could end this one
            self._test = test
            if self._wake.locked():
                self._wake.release()

    def take_over(self) -> None:
        """Return once the thread is outside MPI and will not call it again before the next :meth:`watch`."""
        if self._test is None:
            return
        with self._lock:
            self._test = None

    def _run(self) -> None:
        _ask_for_short_slices()
        while self._wake.acquire():
            while self._tests():
                time.sleep(_TEST_PAUSE_SECONDS)

    def _tests(self) -> bool:
        """Call the test once. Return whether it is to be called again."""
        with self._lock:
            try:
                if self._test is not None and self._test():
                    self._test = None
            except Exception:  # the waiting thread tests as well, and raises the error where it can be handled
                self._test = None
            return self._test is not None


def _ask_for_short_slices() -> None:
    """Let this thread run soon after it wakes, even if computing threads share its core: since Linux 6.12, threads that ask for
    short time slices run first. This needs no privileges, because the thread's share of the core stays the same."""
    number = _SYS_SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        # size, policy (SCHED_OTHER), flags, nice, priority, runtime (the slice), deadline, period
        attributes = struct.pack("IIQiIQQQ", 48, 0, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


PROGRESS = Progress()  # one for each process, like MPI and its rules for threads


# Threads in which this rank has waited for others. The end of another thread stops no rank.
taking_part: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@functools.cache
def end_all_at_error() -> int:
    """From now on, an exception that nobody catches, and ``sys.exit`` or ``exit`` with another code than 0, end all ranks, which
    would else wait for this one until their timeout. ``python -m mpi4py`` does the same for programs started with it.

    The traceback is printed, files are closed and functions of ``atexit`` run, and then MPI aborts. As before, an error that all
    ranks have raised together (``HpcgnnError.agreed``) and an interruption leave through MPI's end, and so does a program's own
    ``raise SystemExit``, which nobody can notice. In interactive sessions and in pytest, which go on after an error, nothing is
    installed. Returns the number of this process at the first call. Not collective.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive or "_pytest" in sys.modules:
        return os.getpid()
    process, in_main, in_thread = os.getpid(), sys.excepthook, threading.excepthook

    def after_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        in_main(kind, error, trace)
        if os.getpid() == process and _ends_the_job(error):
            abort_at_exit(1, getattr(error, "grace_seconds", 0.0))

    def after_exception_in_thread(told: threading.ExceptHookArgs) -> None:
        in_thread(told)
        if os.getpid() == process and told.thread in taking_part and _ends_the_job(told.exc_value):
            abort_if_parallel(1)  # not when Python ends, because the main thread may wait for this one

    sys.excepthook, threading.excepthook = after_exception, after_exception_in_thread
    sys.exit = builtins.exit = builtins.quit = _exit  # type: ignore[assignment]
    return process


def _ends_the_job(error: BaseException | None) -> bool:
    return isinstance(error, Exception) and not (isinstance(error, HpcgnnError) and error.agreed)


class _Leaving(SystemExit):
    """The exception of ``sys.exit``, which the program may still catch."""

    def __del__(self) -> None:
        # No function runs beneath this one when Python itself has taken the exception, to end the process by it.
        if sys._getframe().f_back is None and self.code not in (None, 0):
            abort_at_exit(self.code if isinstance(self.code, int) else 1)


def _exit(status: object = None, /) -> NoReturn:
    """``sys.exit``, also in forks and in other threads, whose end is not that of the rank."""
    is_rank = os.getpid() == end_all_at_error() and threading.current_thread() is threading.main_thread()
    raise (_Leaving if is_rank else SystemExit)(status)
