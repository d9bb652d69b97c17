"""GPUs of NVIDIA or AMD, which torch calls ``cuda``, those that this process sees, and all devices by their torch type."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.devices.base import CPU, Device

_LOG = logging.getLogger("hpcgnn")


class GpuDevice(Device):
    """A GPU. Copies to the host and from it have a stream each, so that both run at the same time; all else is on the current
    stream of the calling thread, and :meth:`use` sets it for torch, Triton and MPI."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.name = torch.cuda.get_device_name(torch_device)
        self._to_host, self._from_host = (torch.cuda.Stream(torch_device) for _ in range(2))
        # cuBLAS adds in the same order each time only with a workspace of fixed size; it reads this variable when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if torch.get_float32_matmul_precision() != "highest":
            _LOG.warning(
                "products of float32 were allowed to be less exact (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE): that is --compute tf32"
            )
            torch.set_float32_matmul_precision("highest")

    def use(self) -> None:
        torch.cuda.set_device(self.torch_device)

    def record(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self.torch_device).record_event()

    def follow(self, event: Any) -> None:
        torch.cuda.current_stream(self.torch_device).wait_event(event)

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Any = None) -> torch.cuda.Event:
        stream = self._to_host if target.is_cpu else self._from_host
        with torch.cuda.stream(stream):
            if behind is not None:
                stream.wait_event(behind)
            target.copy_(source, non_blocking=True)
            return stream.record_event()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds_between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return first.elapsed_time(last) / 1000

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.torch_device)[0]  # the memory of other processes is used memory

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch_device)


_MAKERS: dict[str, Callable[[torch.device], Device]] = {"cpu": lambda torch_device: CPU, "cuda": GpuDevice}


def register(kind: str, make: Callable[[torch.device], Device]) -> None:
    """Add a type of devices: ``make`` is called once for each device of the type."""
    _MAKERS[kind] = make
    _made.cache_clear()


def device_of(torch_device: torch.device) -> Device:
    """The device of tensors on ``torch_device``; a GPU without a number is the one that this thread uses.

    Raises:
        ValueError: for an unknown type of device.
    """
    if torch_device.type not in _MAKERS:
        raise ValueError(f"tensors must be on one of {', '.join(_MAKERS)}, not on {torch_device}")
    if torch_device.type == "cuda" and torch_device.index is None:
        torch_device = torch.device("cuda", torch.cuda.current_device())
    return _made(torch_device)


@functools.cache
def _made(torch_device: torch.device) -> Device:
    return _MAKERS[torch_device.type](torch_device)


class Gpus:
    """The GPUs that torch finds; tests replace this class."""

    def problem(self) -> str | None:
        """The reason why no GPU can be used, a clause to follow "but"; None if one can."""
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} was built for CPUs: install a build for CUDA or ROCm"
        if torch.cuda.is_available() and torch.cuda.device_count():
            return None
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # no driver, or one that does not fit this torch
            return f"torch cannot use any: {' '.join(str(error).split())}"
        return "this process sees no GPU (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, the job's --gpus-per-task)"

    def count(self) -> int:
        """Number of GPUs."""
        return torch.cuda.device_count()

    def identity(self, number: int) -> str:
        """A text that identifies a GPU of the machine, independent of the numbers that processes give to GPUs."""
        about = torch.cuda.get_device_properties(number)
        # Some builds of torch have no uuid. Each process may call its own GPU number 0, so numbers do not identify GPUs.
        names = ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id")
        known = [str(getattr(about, name)) for name in names if hasattr(about, name)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        slice_of_one = [visible] if visible.startswith("MIG-") else []  # a slice may have the same ids as the whole GPU
        return " ".join([*(known or [about.name, str(number)]), *slice_of_one])

    def device(self, number: int) -> Device:
        """The GPU of this number."""
        return device_of(torch.device("cuda", number))
