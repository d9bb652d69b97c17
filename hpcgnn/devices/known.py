"""Devices by their torch type; a process has one object for each device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from hpcgnn.devices.base import Device
from hpcgnn.devices.cpu import CPU
from hpcgnn.devices.gpu import GpuDevice

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
