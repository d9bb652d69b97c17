"""A request to stop: SIGUSR1, which Slurm's ``--signal`` sends before the time limit."""

from __future__ import annotations

import signal
import threading


class StopRequest:
    """Remembers that SIGUSR1 came. It stays installed: the signal may come at any moment, also after the last epoch."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> StopRequest:
        """Take SIGUSR1 from now on (from the main thread; another one cannot, and hears nothing)."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._remember)
        return self

    def ignore(self) -> None:
        """Take no notice from now on: Python would restore the fatal default on its way out, before MPI ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _remember(self, *_: object) -> None:
        self.requested = True
