"""Devices by their torch type; a process has one object for each device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from hpcgnn.devices.base import Device
from hpcgnn.devices.cpu import CPU
from hpcgnn.devices.gpu import GpuDevice

_MAKERS: dict[str, Callable[[torch.device], Device]] = {"cpu": lambda where: CPU, "cuda": GpuDevice}


def register(kind: str, make: Callable[[torch.device], Device]) -> None:
    """Add a type of devices: ``make`` is called once for each device of the type."""
    _MAKERS[kind] = make
    _made.cache_clear()


def device_of(where: torch.device) -> Device:
    """The device of tensors on ``where``; a GPU without a number is the one that this thread uses.

    Raises:
        ValueError: for an unknown type of device.
    """
    if where.type not in _MAKERS:
        raise ValueError(f"tensors must be on one of {', '.join(_MAKERS)}, not on {where}")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return _made(where)


@functools.cache
def _made(where: torch.device) -> Device:
    return _MAKERS[where.type](where)
