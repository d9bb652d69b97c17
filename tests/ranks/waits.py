"""Programs in which a rank comes late to a call, or ends."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from hpcgnn.world import MpiWorld, World
from hpcgnn.world.waiting import ROLL_CALL


class _Lines(logging.Handler):
    """Keeps the lines of the log, and makes a file at the first one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        self._path.touch()


def told_of_a_late_rank(world: World, late: int, path: Path) -> list[str]:
    """The lines of this rank about rank ``late``, which comes to a call when another rank has said that it does not."""
    log, said = logging.getLogger("hpcgnn"), _Lines(path)
    before = log.level, log.handlers, ROLL_CALL.say_seconds
    log.level, log.handlers, ROLL_CALL.say_seconds = logging.WARNING, [said], 0.2
    world = MpiWorld(timeout_seconds=12)
    world.allreduce(np.zeros(1))
    while world.rank == late and not path.exists():
        time.sleep(0.01)
    world.allreduce(np.zeros(1), what="the numbers of all")
    assert not said.lines or ROLL_CALL.say_seconds > 0.4, "waits that end are not told so soon again"
    log.level, log.handlers, ROLL_CALL.say_seconds = before
    return said.lines
