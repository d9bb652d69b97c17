"""Signals that ask a process to stop: SIGUSR1, which Slurm's ``--signal`` sends before the time limit, is remembered; Ctrl-C and
SIGTERM interrupt at once."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

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
    """See to it that a signal to a fork, which has the same open files, is no signal to this process."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class StopRequest:
    """Remembers the signals that have come.

    The handler of SIGUSR1 stays installed, because the signal may come at any moment, also after the last epoch. Ctrl-C and
    SIGTERM, which launchers send, raise KeyboardInterrupt; repetitions within two seconds are ignored. C code between the
    handler and the caller may turn the exception into an error of another kind (ctypes does), so a caller looks at
    ``interrupted`` to tell an interruption from another error.

    Attributes:
        requested: SIGUSR1 has come.
        interrupted: SIGINT or SIGTERM has come.
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
        """Ignore SIGUSR1 from now on, and leave interruptions to their handlers.

        Python restores the default handler when it exits. A SIGUSR1 between that and the end of MPI would kill the process.
        """
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
