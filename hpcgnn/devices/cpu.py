"""The host as a device: all that was asked for is done."""

from __future__ import annotations

import time

import torch


class _Over:
    """An event that has happened."""

    def is_over(self) -> bool:
        """It is."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""


_OVER = _Over()


class CpuDevice:
    """See :class:`hpcgnn.devices.base.Device`."""

    where = torch.device("cpu")
    name = "CPU"

    def use(self) -> None:
        """It is what torch uses."""

    def record(self) -> _Over:
        """Now."""
        return _OVER

    def follow(self, event: object) -> None:
        """It has happened."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: object = None) -> _Over:
        """At once."""
        target.copy_(source)
        return _OVER

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def mark(self) -> float:
        """Seconds of the clock."""
        return time.perf_counter()

    def seconds_between(self, first: float, last: float) -> float:
        """Their difference."""
        return last - first

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Any memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def free_bytes(self) -> None:
        """The host's."""

    def peak_bytes(self) -> None:
        """The host's."""


CPU = CpuDevice()
