"""A device, beyond the tensors on it, as training needs it; and the host as a device, whose work is done when a call returns.

A device does its work in the order in which the host starts it, while the host goes on. Copies between both run beside that work,
each after an event that it is given. Before the host reads copied bytes, it asks the copy's event whether they have arrived.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a device's sequence of work."""

    def is_over(self) -> bool:
        """Return whether the device has reached this point. Does not wait."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has reached this point."""
        ...


class Device(Protocol):
    """A device. torch_device: its ``torch.device``."""

    torch_device: torch.device

    def use(self) -> None:
        """Make this the calling thread's device, for work that names no device."""
        ...

    @property
    def name(self) -> str:
        """The name that the device's maker gives it."""
        ...

    # -- order --------------------------------------------------------------------------------------------------------

    def record(self) -> Event:
        """An event after all work that was started so far."""
        ...

    def follow(self, event: Event) -> None:
        """Let work that is started from now on begin after ``event``. The host does not wait."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Event | None = None) -> Event:
        """Start to copy between this device and :meth:`host_memory`, after ``behind`` and beside other work; return the event of
        the copy's end.

        Both tensors are contiguous and of one size, and must not change until then.
        """
        ...

    def synchronize(self) -> None:
        """Wait on the host for all work that was started so far."""
        ...

    # -- time ---------------------------------------------------------------------------------------------------------

    def mark(self) -> Any:
        """A time stamp in the device's sequence of work."""
        ...

    def seconds_between(self, first: Any, last: Any) -> float:
        """Seconds from one :meth:`mark` to another. Waits for the latter."""
        ...

    # -- memory -------------------------------------------------------------------------------------------------------

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 in memory of the host, which the device can copy to and from while the host goes on."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes of the device's memory that are free; None for the host."""
        ...

    def peak_bytes(self) -> int | None:
        """Largest number of bytes that this process's tensors on the device took at one time; None for the host."""
        ...


class _Over:
    """An event that is over."""

    def is_over(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Return at once."""


_OVER = _Over()


class CpuDevice:
    """See :class:`hpcgnn.devices.base.Device`."""

    torch_device = torch.device("cpu")
    name = "CPU"

    def use(self) -> None:
        """Do nothing: torch uses the host by default."""

    def record(self) -> _Over:
        """An event that is over."""
        return _OVER

    def follow(self, event: object) -> None:
        """Do nothing: events of the host are over."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: object = None) -> _Over:
        """Copy at once."""
        target.copy_(source)
        return _OVER

    def synchronize(self) -> None:
        """Return at once."""

    mark = staticmethod(time.perf_counter)  # seconds of a monotonic clock

    def seconds_between(self, first: float, last: float) -> float:
        """The difference of both marks in seconds."""
        return last - first

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def free_bytes(self) -> None:
        """None: the host has no device memory."""

    def peak_bytes(self) -> None:
        """None: the host has no device memory."""


CPU = CpuDevice()
