"""Where tensors lie and kernels run, beside the host: memory, time and the order of what was asked for."""

from hpcgnn.devices.base import Device, Event
from hpcgnn.devices.cpu import CPU
from hpcgnn.devices.known import device_of, register

__all__ = ["CPU", "Device", "Event", "device_of", "register"]
