"""A GPU of NVIDIA or AMD; torch calls both ``cuda``."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

_LOG = logging.getLogger("hpcgnn")


class _GpuEvent:
    """See :class:`hpcgnn.devices.base.Event`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()
        self.event.record(stream)

    def is_over(self) -> bool:
        """Return whether the driver says that the GPU has reached the event."""
        return self.event.query()

    def wait(self) -> None:
        """Wait in the driver, while other threads run."""
        self.event.synchronize()


class GpuDevice:
    """See :class:`hpcgnn.devices.base.Device`. Copies to the host and from it have a stream each, so that both run at the same
    time."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._to_host, self._from_host = (torch.cuda.Stream(torch_device) for _ in range(2))
        # cuBLAS adds in the same order each time only with a workspace of fixed size; it reads this variable when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if torch.get_float32_matmul_precision() != "highest":
            _LOG.warning(
                "products of float32 were allowed to be less exact (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE): that is --compute tf32"
            )
            torch.set_float32_matmul_precision("highest")

    def use(self) -> None:
        """Make torch, Triton and MPI use this GPU in the thread that calls this."""
        torch.cuda.set_device(self.torch_device)

    @property
    def name(self) -> str:
        """The GPU's name from the driver."""
        return torch.cuda.get_device_name(self.torch_device)

    def record(self) -> _GpuEvent:
        """An event on the current stream of this thread."""
        return _GpuEvent(torch.cuda.current_stream(self.torch_device))

    def follow(self, event: Any) -> None:
        """Let the current stream of this thread wait for ``event``."""
        torch.cuda.current_stream(self.torch_device).wait_event(event.event)

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Any = None) -> _GpuEvent:
        """Start a copy on the stream of its direction."""
        stream = self._to_host if target.is_cpu else self._from_host
        with torch.cuda.stream(stream):
            if behind is not None:
                stream.wait_event(behind.event)
            target.copy_(source, non_blocking=True)
            return _GpuEvent(stream)

    def synchronize(self) -> None:
        """Wait for all streams of the GPU."""
        torch.cuda.synchronize(self.torch_device)

    def mark(self) -> torch.cuda.Event:
        """An event with a time stamp, on the current stream of this thread."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds_between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """Seconds by the GPU's clock."""
        last.synchronize()
        return first.elapsed_time(last) / 1000

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 in pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        """Free bytes according to the driver, which counts the memory of other processes as used."""
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def peak_bytes(self) -> int:
        """Largest number of bytes that torch's allocator gave to tensors at one time."""
        return torch.cuda.max_memory_allocated(self.torch_device)
