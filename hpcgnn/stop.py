"""Signals that ask a process to stop: SIGUSR1, which Slurm's ``--signal`` sends before the time limit, is remembered; Ctrl-C and
SIGTERM interrupt at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn


class StopRequest:
    """Remembers the signals that have come.

    The handler of SIGUSR1 stays installed, because the signal may come at any moment, also after the last epoch. Ctrl-C and
    SIGTERM, which launchers send, raise KeyboardInterrupt. C code between the handler and the caller may turn that into an
    error of another kind (ctypes does), so a caller looks at ``interrupted`` to tell an interruption from another error.

    Attributes:
        requested: SIGUSR1 has come.
        interrupted: SIGINT or SIGTERM has come.
        advice: a sentence for the user about continuing after an interruption; empty where nothing can be continued.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self.advice = ""

    def listen(self) -> StopRequest:
        """Handle SIGUSR1 from now on. Python allows this in the main thread only; in another one nothing happens."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._remember)
        return self

    def listen_to_interruptions(self) -> StopRequest:
        """Handle Ctrl-C and SIGTERM, too. Only commands call this; a library leaves these signals to its caller."""
        signal.signal(signal.SIGTERM, self._interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores SIGINT for commands with &
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def ignore(self) -> None:
        """Ignore SIGUSR1 from now on. Otherwise Python would restore the default, which kills, at its exit, before MPI ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _remember(self, *_: object) -> None:
        self.requested = True

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        self.interrupted = True
        signal.default_int_handler(number, frame)
        raise AssertionError("the handler raises KeyboardInterrupt")
