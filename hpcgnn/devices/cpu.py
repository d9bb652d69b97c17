"""The host as a device: all work is done when its call returns."""

from __future__ import annotations

import time

import torch


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
