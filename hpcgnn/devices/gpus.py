"""The GPUs that this process sees."""

from __future__ import annotations

import os

import torch

from hpcgnn.devices.base import Device
from hpcgnn.devices.known import device_of


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
