"""Where the seconds of an epoch went, on one rank."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

PHASES = (
    "aggregation_seconds",
    "communication_wait_seconds",
    "wire_seconds",
    "quantization_seconds",
    "synchronisation_seconds",
    "policy_seconds",
)


class Timings:
    """Seconds per phase since the last :meth:`take`; ``wire_seconds`` overlaps with the others."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def add(self, phase: str, seconds: float) -> None:
        """Add ``seconds`` to ``phase``."""
        self._seconds[phase] += seconds

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time of the body to ``phase``."""
        started = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - started)

    def take(self) -> list[float]:
        """The seconds in the order of :data:`PHASES`; starts again from zero."""
        values = list(self._seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return values
