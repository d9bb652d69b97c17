"""Timing of calls on a device: between two of the device's marks, so that the host's time to start them does not count."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpcgnn.devices import Device

# On a GPU, several calls are timed together, for at least this time, because one call may be shorter than its start.
_TOGETHER_SECONDS = 0.01
_MOST_TOGETHER = 100


def seconds(device: Device, call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of one call, as the mean of ``calls`` consecutive ones. Freeing the last result is not timed."""
    started = device.mark()
    for _ in range(calls):
        result = call()
    ended = device.mark()
    del result
    return device.seconds_between(started, ended) / calls


def calls_together(device: Device, one: float) -> int:
    """Number of calls of ``one`` seconds each to time together; 1 on the host, where a call has ended when it returns."""
    if device.torch_device.type == "cpu":
        return 1
    return min(max(math.ceil(_TOGETHER_SECONDS / max(one, 1e-9)), 1), _MOST_TOGETHER)
