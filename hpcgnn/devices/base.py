"""A device, beyond the tensors on it, as training needs it: the host itself, whose work is done when a call returns.

A GPU does its work in the order in which the host starts it, while the host goes on. Copies between both run beside that work,
each after an event that it is given. Before the host reads copied bytes, it asks the copy's event whether they have arrived.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class _Over:
    """A point in the host's sequence of work, which is over."""

    def query(self) -> bool:
        """Return whether the device has reached this point. Does not wait."""
        return True

    def synchronize(self) -> None:
        """Wait on the host until the device has reached this point."""


Event = _Over | torch.cuda.Event  # a point in a device's sequence of work


class Device:
    """The host as a device. Other devices extend this class. torch_device: its ``torch.device``. name: the maker's name."""

    torch_device = torch.device("cpu")
    name: str = "CPU"

    def use(self) -> None:
        """Make this the calling thread's device, for work that names no device."""

    # -- order --------------------------------------------------------------------------------------------------------

    def record(self) -> Event:
        """An event after all work that was started so far."""
        return _OVER

    def follow(self, event: Any) -> None:
        """Let work that is started from now on begin after ``event``. The host does not wait."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Any = None) -> Event:
        """Start to copy between this device and :meth:`host_memory`, after the event ``behind`` and beside other work; return the
        event of the copy's end.

        Both tensors are contiguous and of one size, and must not change until then.
        """
        target.copy_(source)
        return _OVER

    def synchronize(self) -> None:
        """Wait on the host for all work that was started so far."""

    # -- time ---------------------------------------------------------------------------------------------------------

    mark: Any = staticmethod(time.perf_counter)
    """A function that returns a time stamp in the device's sequence of work."""

    def seconds_between(self, first: Any, last: Any) -> float:
        """Seconds from one :attr:`mark` to another. Waits for the latter."""
        return last - first

    # -- memory -------------------------------------------------------------------------------------------------------

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 in memory of the host, which the device can copy to and from while the host goes on."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def free_bytes(self) -> int | None:
        """Bytes of the device's memory that are free; None for the host."""
        return None

    def peak_bytes(self) -> int | None:
        """Largest number of bytes that this process's tensors on the device took at one time; None for the host."""
        return None


_OVER = _Over()
CPU = Device()
