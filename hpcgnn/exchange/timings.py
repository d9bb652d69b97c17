"""The seconds that one rank spent in each phase of an epoch."""

from __future__ import annotations

from collections.abc import Callable
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

        self._phases = {phase: _Phase(phase, device.mark, self._spans) for phase in PHASES}

    def add(self, phase: str, seconds: float) -> None:
        """Add ``seconds`` to ``phase``."""
        self._seconds[phase] += seconds

    def measure(self, phase: str) -> _Phase:
        """A context that adds the time of its body to ``phase``; the same object in each call."""
        return self._phases[phase]

    def take(self) -> list[float]:
        """The seconds in the order of :data:`PHASES`; starts again from zero. Waits for the end of the measured work."""
        for phase, first, last in self._spans:
            self._seconds[phase] += self.device.seconds_between(first, last)
        values = list(self._seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._spans.clear()
        return values


class _Phase:
    """Notes the first and last mark of each body that ends without an error in ``spans``; bodies may be nested."""

    def __init__(self, name: str, mark: Callable[[], Any], spans: list[tuple[str, Any, Any]]) -> None:
        self._name, self._mark, self._spans = name, mark, spans
        self._firsts: list[Any] = []

    def __enter__(self) -> None:
        self._firsts.append(self._mark())

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        first = self._firsts.pop()
        if kind is None:
            self._spans.append((self._name, first, self._mark()))
