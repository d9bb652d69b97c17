"""A thread that lets MPI move data while this rank computes.

MPI moves large messages only while it is called, and what a rank does between starting an exchange and waiting for it, local
aggregation and dense products, calls no MPI. One thread a process tests the exchange under way a few thousand times a
second instead; computing threads are in native code without Python's lock, so it runs beside them. MPI is initialised as
``MPI_THREAD_SERIALIZED``: the thread may call it only between :meth:`Progress.watch` and :meth:`Progress.take_over`.
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

# An MPI library hands the network some hundred KiB at a call: pauses of this length keep up with 10 Gbit/s over TCP, and
# calls take about 1 % of a core.
_PAUSE_SECONDS = 5e-4
_SLICE_NANOSECONDS = 100_000
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class Progress:
    """Calls a test again and again, from a thread of its own, until it says that it is complete or it is taken over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the test is called
        self._watching = threading.Event()
        self._test: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None

    def watch(self, test: Callable[[], bool]) -> None:
        """Call ``test`` until it returns True. From now to :meth:`take_over` no one else may call MPI."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mpi-progress", daemon=True)
            self._thread.start()
        with self._lock:  # or the end of the test before, which the thread has just seen, would end this one
            self._test = test
            self._watching.set()

    def take_over(self) -> None:
        """Return when the thread is not in MPI and will not enter it again."""
        if self._test is None:
            return
        with self._lock:
            self._test = None
            self._watching.clear()

    def _run(self) -> None:
        _ask_for_short_slices()
        while self._watching.wait():
            with self._lock:
                test = self._test
                if test is not None and self._is_over(test):
                    self._watching.clear()
            time.sleep(_PAUSE_SECONDS)

    @staticmethod
    def _is_over(test: Callable[[], bool]) -> bool:
        try:
            return test()
        except Exception:  # whoever waits tests too, and raises it where it can be handled
            return True


def _ask_for_short_slices() -> None:
    """Let this thread run soon after it wakes where threads that compute share its core: Linux 6.12 on has short slices first.

    Elsewhere nothing happens. Needs no rights: the share of the core stays the same.
    """
    number = _SYS_SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        # size, policy (SCHED_OTHER), flags, nice, priority, runtime (the slice), deadline, period
        attributes = struct.pack("IIQiIQQQ", 48, 0, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


PROGRESS = Progress()  # one a process, as MPI and its rules for threads are
