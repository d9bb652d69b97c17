"""What training needs of a device, beyond tensors on it.

A device does what it is asked for in order, while the host goes on. Copies between it and the host run beside that, each
behind an event that it is given. Whoever needs bytes on the host asks an event whether they are there.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in what a device does."""

    def is_over(self) -> bool:
        """Whether the device has come to it. Does not wait."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has come to it."""
        ...


class Device(Protocol):
    """where: as torch knows it."""

    where: torch.device

    def use(self) -> None:
        """What the calling thread asks for without naming a device is asked of this one."""
        ...

    @property
    def name(self) -> str:
        """As its maker calls it."""
        ...

    # -- order --------------------------------------------------------------------------------------------------------

    def record(self) -> Event:
        """The point behind all that was asked for so far."""
        ...

    def follow(self, event: Event) -> None:
        """What is asked for from now on is done behind ``event``. The host goes on."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Event | None = None) -> Event:
        """Start to copy between this device and :meth:`host_memory`, beside all else and behind ``behind``; the event of its end.

        Both are contiguous, of one size, and stay as they are until then.
        """
        ...

    def synchronize(self) -> None:
        """Wait on the host for all that was asked for so far."""
        ...

    # -- time ---------------------------------------------------------------------------------------------------------

    def mark(self) -> Any:
        """A point in time of what the device does."""
        ...

    def seconds_between(self, first: Any, last: Any) -> float:
        """From one :meth:`mark` to another. Waits for the latter."""
        ...

    # -- memory -------------------------------------------------------------------------------------------------------

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 of the host, which the device can copy to and from while the host goes on."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that can still be taken; None where it is the host's."""
        ...

    def peak_bytes(self) -> int | None:
        """The most that this process's tensors on it have taken at a time; None where it is the host's."""
        ...
