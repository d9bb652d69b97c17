"""The seconds that one rank spent in each phase of an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcgnn.devices import CPU, Device

PHASES = (
    "aggregation_seconds",
    "communication_wait_seconds",
    "wire_seconds",
    "quantization_seconds",
    "synchronisation_seconds",
    "policy_seconds",
)


class Timings:
    """Seconds per phase since the last :meth:`take`; ``wire_seconds`` overlaps with the others.

    device: the device whose time is measured. A phase of a GPU lies between two marks in its stream of work, and the host does
    not wait for them. While the host waits for messages, the GPU waits for the host: this time counts as
    ``communication_wait_seconds``.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._spans: list[tuple[str, Any, Any]] = []

    def add(self, phase: str, seconds: float) -> None:
        """Add ``seconds`` to ``phase``."""
        self._seconds[phase] += seconds

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time of the body to ``phase``."""
        first = self.device.mark()
        yield
        self._spans.append((phase, first, self.device.mark()))

    def take(self) -> list[float]:
        """The seconds in the order of :data:`PHASES`; starts again from zero. Waits for the end of the measured work."""
        for phase, first, last in self._spans:
            self._seconds[phase] += self.device.seconds_between(first, last)
        values = list(self._seconds.values())
        self._seconds, self._spans = dict.fromkeys(PHASES, 0.0), []
        return values
