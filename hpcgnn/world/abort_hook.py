"""The end of the job when a user's program ends on one rank: the other ranks would wait for it until their timeout.

``python -m mpi4py`` does the same for programs that are started with it.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import threading
import weakref
from types import TracebackType
from typing import NoReturn

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import job

# Threads in which this rank has waited for others. The end of another thread stops no rank.
taking_part: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@functools.cache
def install() -> int:
    """From now on, an exception that nobody catches, and ``sys.exit`` or ``exit`` with another code than 0, end all ranks.

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
            job.abort_at_exit(1, getattr(error, "grace_seconds", 0.0))

    def after_exception_in_thread(told: threading.ExceptHookArgs) -> None:
        in_thread(told)
        if os.getpid() == process and told.thread in taking_part and _ends_the_job(told.exc_value):
            job.abort_if_parallel(1)  # not when Python ends, because the main thread may wait for this one

    sys.excepthook, threading.excepthook = after_exception, after_exception_in_thread
    sys.exit = builtins.exit = builtins.quit = _exit  # type: ignore[assignment]
    return process


def _ends_the_job(error: BaseException | None) -> bool:
    """Return whether the ranks do not end together by themselves."""
    return isinstance(error, Exception) and not (isinstance(error, HpcgnnError) and error.agreed)


class _Leaving(SystemExit):
    """The exception of ``sys.exit``, which the program may still catch."""

    def __del__(self) -> None:
        # No function runs beneath this one when Python itself has taken the exception, to end the process by it.
        if sys._getframe().f_back is None and self.code not in (None, 0):
            job.abort_at_exit(self.code if isinstance(self.code, int) else 1)


def _exit(status: object = None, /) -> NoReturn:
    """``sys.exit``, also in forks and in other threads, whose end is not that of the rank."""
    is_rank = os.getpid() == install() and threading.current_thread() is threading.main_thread()
    raise (_Leaving if is_rank else SystemExit)(status)
