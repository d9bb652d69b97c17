"""Timing calls on a device: between two of its marks, so that the host's own way to them is not counted."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpcgnn.devices import Device

# On a device, calls are timed together, so many at a time as take so long: one alone may be shorter than what starts it.
_TOGETHER_SECONDS = 0.01
_MOST_TOGETHER = 100


def seconds(device: Device, call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of one call, the mean of so many that follow each other. The last one's result is freed untimed."""
    started = device.mark()
    for _ in range(calls):
        result = call()
    ended = device.mark()
    del result
    return device.seconds_between(started, ended) / calls


def calls_together(device: Device, one: float) -> int:
    """How many calls of ``one`` second to time together: a single one on the host, whose calls have ended when they return."""
    if device.where.type == "cpu":
        return 1
    return min(max(math.ceil(_TOGETHER_SECONDS / max(one, 1e-9)), 1), _MOST_TOGETHER)
