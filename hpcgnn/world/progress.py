"""A thread that lets MPI move data while this rank computes.

MPI moves large messages only while it is called, and between starting an exchange and waiting for it a rank computes local
aggregation and dense products, which do not call MPI. So one thread of each process tests the exchange under way a few thousand
times a second. It runs beside the computing threads, as these are in native code, which does not hold Python's lock. MPI is
initialised as ``MPI_THREAD_SERIALIZED``: the thread may call it only between :meth:`Progress.watch` and
:meth:`Progress.take_over`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import threading
import time
from collections.abc import Callable

# An MPI library hands the network some hundred KiB in each call. With pauses of this length it keeps up with 10 Gbit/s over
# TCP, and the calls take about 1 % of a core.
_PAUSE_SECONDS = 5e-4
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
                time.sleep(_PAUSE_SECONDS)

    def _tests(self) -> bool:
        """Call the test once. Return whether it is to be called again."""
        with self._lock:
            if self._test is not None and self._is_over(self._test):
                self._test = None
            return self._test is not None

    @staticmethod
    def _is_over(test: Callable[[], bool]) -> bool:
        try:
            return test()
        except Exception:  # the waiting thread tests as well, and raises the error where it can be handled
            return True


def _ask_for_short_slices() -> None:
    """Let this thread run soon after it wakes, even if computing threads share its core: since Linux 6.12, threads that ask for
    short time slices run first.

    On other systems nothing happens. The call needs no privileges, because the thread's share of the core stays the same.
    """
    number = _SYS_SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        # size, policy (SCHED_OTHER), flags, nice, priority, runtime (the slice), deadline, period
        attributes = struct.pack("IIQiIQQQ", 48, 0, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


PROGRESS = Progress()  # one for each process, like MPI and its rules for threads
