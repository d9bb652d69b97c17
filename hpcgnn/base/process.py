"""This process: the signals that ask it to stop, its memory, its age, its processor, and folders that libraries use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
# Launchers send SIGTERM several times. A repetition must not interrupt the cleaning up that the first one has begun.
_REPETITION_SECONDS = 2.0
_RETRY_SECONDS = 0.05
# Open MPI's launcher kills a rank one second after SIGTERM. Python runs its handler between two of its own instructions, so not
# while the main thread is in a long call of native code; after this time another thread acts in its place.
_ANSWER_SECONDS = 0.3


def answer_interruptions(handler: Callable[..., object] | signal.Handlers) -> None:
    """Handle Ctrl-C and SIGTERM by ``handler`` from now on, except a signal that is ignored."""
    for number in _INTERRUPTIONS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


@functools.cache
def _forget_arrivals_in_forks() -> None:
    # A signal to a fork, which has the same open files, is no signal to this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class StopRequest:
    """Remembers the signals that have come; Slurm's ``--signal`` sends SIGUSR1 before the time limit.

    The handler of SIGUSR1 stays installed, because the signal may come at any moment, also after the last epoch. Ctrl-C and
    SIGTERM, which launchers send, raise KeyboardInterrupt; repetitions within two seconds are ignored.

    Attributes:
        requested: SIGUSR1 has come.
        interrupted: SIGINT or SIGTERM has come. C code, such as that of ctypes, may have turned the exception into another error.
        advice: makes a sentence for the user about continuing after an interruption; an empty one where nothing can be continued.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self.advice: Callable[[], str] = lambda: ""
        self._last = 0.0
        self._arrivals: int | None = None  # the file to which the system's handler writes the numbers of signals

    def listen(self) -> StopRequest:
        """Handle SIGUSR1 from now on. Python allows this in the main thread only; in another one nothing happens."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._remember)
        return self

    def listen_to_interruptions(self, leave: Callable[[], object]) -> StopRequest:
        """Handle Ctrl-C and SIGTERM, too. Only commands call this; a library leaves these signals to its caller.

        leave: ends the process. It is called in another thread where the main thread is in native code and cannot answer.
        """
        sys.unraisablehook = self._interrupt_later
        signal.signal(signal.SIGTERM, self._interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores SIGINT for commands with &
            signal.signal(signal.SIGINT, self._interrupt)
        reader, self._arrivals = os.pipe()
        os.set_blocking(self._arrivals, False)
        signal.set_wakeup_fd(self._arrivals, warn_on_full_buffer=False)
        _forget_arrivals_in_forks()
        threading.Thread(target=self._watch, args=(reader, leave), name="signals", daemon=True).start()
        return self

    def ignore(self) -> None:
        """Ignore SIGUSR1 from now on, which would kill the process between Python's exit and the end of MPI, and leave
        interruptions to their handlers."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            if self._arrivals is not None:
                signal.set_wakeup_fd(-1)
                os.close(self._arrivals)  # the thread that reads ends
                self._arrivals = None

    def _remember(self, *_: object) -> None:
        self.requested = True

    def _interrupt(self, *_: object) -> None:
        now = time.monotonic()
        if self.interrupted and now - self._last < _REPETITION_SECONDS:
            return
        self._last = now
        self.interrupted = True
        raise KeyboardInterrupt

    def _watch(self, reader: int, leave: Callable[[], object]) -> None:
        """Call ``leave`` if the main thread does not answer an interruption in time."""
        with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as arrivals:
            while numbers := arrivals.read(64):
                # A launcher of virtual hosts has handlers of its own.
                if any(number in _INTERRUPTIONS and signal.getsignal(number) == self._interrupt for number in numbers):
                    time.sleep(_ANSWER_SECONDS)
                    if not self.interrupted:
                        self._last, self.interrupted = time.monotonic(), True  # so the main thread says nothing
                        leave()

    def _interrupt_later(self, lost: Any) -> None:
        """Try again if Python had to drop the exception because a finaliser or a callback was running."""
        if lost.exc_type is not KeyboardInterrupt or not self.interrupted:
            sys.__unraisablehook__(lost)
            return
        self._last -= _REPETITION_SECONDS
        again = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()


# options of mallopt() in glibc's <malloc.h>
# Blocks that return to the system, where memory is limited.
LARGE_BYTES = 1 << 23
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4


def peak_memory_bytes(*, or_of_children: bool = False) -> int:
    """The largest resident memory so far, in bytes, of this process (or of one that it has started and waited for)."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)[: 1 + or_of_children]
    peak = max(resource.getrusage(each).ru_maxrss for each in whose)
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def system_text(path: str) -> str:
    """The text of a file that the system makes; empty where it has none of this name."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def resident_memory_bytes() -> int:
    """Resident memory of this process now; 0 where the system has no ``/proc``."""
    fields = system_text("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def disable_malloc_trimming(*, is_limited: bool = False) -> bool:
    """Make the C library take large blocks from its heap, and never return freed memory to the system: a training step allocates
    the same sizes again and again, and page faults of fresh memory cost more than most computations on it. Only commands call
    this. Returns False where the C library has no such settings.

    is_limited: return blocks of 8 MiB and more when they are freed. The heap holds 1.8 to 2.9 times the bytes that were in use at
    one time, because a free piece is seldom large enough for a block of the same size, which must begin at a multiple of 64.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    large = (_M_MMAP_THRESHOLD, LARGE_BYTES) if is_limited else (_M_MMAP_MAX, 0)
    settings = (large, (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 1 << 26))
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in settings)


def return_free_memory() -> None:
    """Give free pieces of the C library's heap back to the system, where it has a function for that: after large temporaries that
    are made once, which later allocations would not fill."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_PRIVATE = ("Private_Clean:", "Private_Dirty:")
# Index of the start time in stat (proc(5)), counted after the command's name, which is in brackets and may have spaces.
_START_FIELD = 19


def private_memory_bytes(process: int | str = "self") -> int:
    """Resident memory, in bytes, that no other process maps; see :func:`mapped_bytes`."""
    return mapped_bytes(process, _PRIVATE)


def mapped_bytes(process: int | str, kinds: tuple[str, ...]) -> int:
    """Bytes of some kinds of memory, such as ``"Pss:"``, of a process or of ``"self"`` (proc(5), smaps_rollup). 0 where the
    system has no ``/proc``, or the process has ended."""
    lines = system_text(f"/proc/{process}/smaps_rollup").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))


def seconds_since_start() -> float:
    """Seconds since the system started this process, imports included; 0 where the system has no ``/proc``."""
    fields = system_text("/proc/self/stat")
    if not fields:
        return 0.0
    started = int(fields.rpartition(")")[2].split()[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)


def processor() -> str:
    """The name in Linux's /proc/cpuinfo; without one, Python's name of the processor or of the architecture."""
    for line in system_text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu"):
            return value.strip()
    return platform.processor() or platform.machine()


def check_cache_folders() -> None:
    """Raise HpcgnnError if a cache folder of compiled code belongs to another user or everybody may write there, or if
    ``TMPDIR`` is not a folder, for which MPI would print dozens of lines."""
    temporary = Path(os.environ.get("TMPDIR", ""))
    if temporary.exists() and not temporary.is_dir():
        raise HpcgnnError(
            f"TMPDIR is {temporary}, which is not a folder: set it to a folder for temporary files, or unset it"
        )
    for variable in ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"):
        folder = os.environ.get(variable, "")
        if folder and (problem := _folder_problem(Path(folder))):
            raise HpcgnnError(
                f"{variable} is {folder}, {problem}, and compiled code in it is run: set it to a folder that only you can write"
            )


def _folder_problem(folder: Path) -> str:
    try:
        found = folder.stat()
    except OSError:
        return ""  # the folder does not exist yet, or the library cannot use it
    if found.st_uid not in (os.geteuid(), 0):
        return "which belongs to another user"
    return "which everybody may write" if found.st_mode & stat.S_IWOTH else ""
