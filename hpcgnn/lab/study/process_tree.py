"""The total memory of a command and of all processes that it starts."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from hpcgnn.base.process import mapped_bytes

_EVERY_SECONDS = 0.05


class MemoryWatch:
    """Measures the memory of a process and its descendants, up to twenty times a second, until it is stopped. It adds up
    proportional set sizes (Linux), so that pages that they share count once. A measurement walks page tables, which takes long
    for large processes; so measurements take a twentieth of the time at most."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        pause = _EVERY_SECONDS
        while not self._over.wait(pause):
            began = time.perf_counter()
            self._most = max(self._most, sum(mapped_bytes(pid, ("Pss:",)) for pid in _family(self._pid)))
            pause = max(_EVERY_SECONDS, 20 * (time.perf_counter() - began))

    def stop(self) -> int:
        """Stop, and return the largest total memory in bytes; 0 on systems without /proc."""
        self._over.set()
        self._thread.join()
        return self._most


def _family(pid: int) -> list[int]:
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    except OSError:  # the process has ended
        pass
    return found
