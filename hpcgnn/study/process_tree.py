"""The memory of a command and of all processes that it starts, together."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from hpcgnn.footprint import mapped_bytes

_EVERY_SECONDS = 0.05


class MemoryWatch:
    """Asks a process and its descendants for their memory, up to twenty times a second, until it is stopped. Pages that they
    share count once: what is added up are proportional set sizes (Linux). Asking walks page tables, which takes long for large
    processes: it is done for a twentieth of the time at most."""

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
        """The largest memory that they have had together, in bytes; 0 where there is no /proc."""
        self._over.set()
        self._thread.join()
        return self._most


def _family(pid: int) -> list[int]:
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    except OSError:  # it has ended
        pass
    return found
