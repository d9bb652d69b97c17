"""The devices that hold tensors and run kernels, the host among them: their memory, time and order of work."""

from hpcgnn.devices.base import CPU, Device, Event
from hpcgnn.devices.gpu import device_of, register

__all__ = ["CPU", "Device", "Event", "device_of", "register"]
