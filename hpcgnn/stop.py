"""Requests to stop: SIGUSR1, which Slurm's ``--signal`` sends before the time limit, and those that interrupt at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn


class StopRequest:
    """Remembers that a signal came.

    SIGUSR1 stays installed: it may come at any moment, also after the last epoch. Ctrl-C and SIGTERM, which launchers
    send, raise KeyboardInterrupt, and C code between here and the caller may turn that into an error of another kind
    (ctypes does): ``interrupted`` tells what it was.

    Attributes:
        requested: SIGUSR1 came.
        interrupted: SIGINT or SIGTERM came.
        advice: how to go on after an interruption; empty where there is nothing to go on from.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self.advice = ""

    def listen(self) -> StopRequest:
        """Take SIGUSR1 from now on (from the main thread; another one cannot, and hears nothing)."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._remember)
        return self

    def listen_to_interruptions(self) -> StopRequest:
        """Take Ctrl-C and SIGTERM too: for a program of its own, as a library leaves them to its caller."""
        signal.signal(signal.SIGTERM, self._interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's & has it ignored
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def ignore(self) -> None:
        """Take no notice of SIGUSR1 from now on: Python would restore the fatal default on its way out, before MPI ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _remember(self, *_: object) -> None:
        self.requested = True

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        self.interrupted = True
        signal.default_int_handler(number, frame)
        raise AssertionError("the handler raises KeyboardInterrupt")
