"""The GPUs that this process sees."""

from __future__ import annotations

import os

import torch

from hpcgnn.devices.base import Device
from hpcgnn.devices.known import device_of


class Gpus:
    """Those of torch; tests have others."""

    def problem(self) -> str | None:
        """Why none can be used, to follow "but"; None where some can."""
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} was built for CPUs: install a build for CUDA or ROCm"
        if torch.cuda.is_available() and torch.cuda.device_count():
            return None
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # no driver, or one that does not fit
            return f"torch cannot use any: {' '.join(str(error).split())}"
        return "this process sees no GPU (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, the job's --gpus-per-task)"

    def count(self) -> int:
        """How many."""
        return torch.cuda.device_count()

    def identity(self, number: int) -> str:
        """What no other GPU of the machine has, whatever numbers processes give them."""
        about = torch.cuda.get_device_properties(number)
        # Some builds of torch have no uuid. Each process may call its own GPU number 0, so numbers do not tell them apart.
        names = ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id")
        known = [str(getattr(about, name)) for name in names if hasattr(about, name)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        slice_of_one = [visible] if visible.startswith("MIG-") else []  # may have the ids of the whole GPU
        return " ".join([*(known or [about.name, str(number)]), *slice_of_one])

    def device(self, number: int) -> Device:
        """The GPU of this number."""
        return device_of(torch.device("cuda", number))
