"""Whether an MPI library reads and writes a GPU's memory ("GPU-aware" MPI): asked of it, and then proved."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.agreement import together
from hpcgnn.comm.transport import PIECE_BYTES, DeviceTransport, HostTransport, Transport
from hpcgnn.comm.world import World
from hpcgnn.devices import Device
from hpcgnn.errors import HpcgnnError

CHOICES = ("auto", "on", "off")
# MPICH's numbers of MPIX_GPU_query_support.
_MPICH_CUDA, _MPICH_HIP = 0, 2
_PROOF_ROWS, _PROOF_BYTES, _PROOF_SECONDS = 1 << 14, 64, 0.01  # a MiB: more than libraries send at once


def says_yes(mpi: Any, kind: str) -> bool:
    """What the MPI library says of memory of devices of this type; no where it has nothing to say. mpi: mpi4py's module."""
    if kind != "cuda":
        return False
    is_amd = torch.version.hip is not None
    library = ctypes.CDLL(mpi.__file__)  # whose symbols are found through the module that is linked to it
    for name in ("MPIX_Query_rocm_support", "MPIX_Query_hip_support") if is_amd else ("MPIX_Query_cuda_support",):
        query = _function(library, name)  # Open MPI, MPICH, MVAPICH
        if query is not None:
            return query() == 1
    query = _function(library, "MPIX_GPU_query_support")  # MPICH and those made of it, Cray's among them
    answer = ctypes.c_int(0)
    return (
        query is not None
        and query(_MPICH_HIP if is_amd else _MPICH_CUDA, ctypes.byref(answer)) == 0
        and answer.value != 0
    )


def _function(library: ctypes.CDLL, name: str) -> Callable[..., int] | None:
    try:
        return getattr(library, name)
    except AttributeError:
        return None


def make_transport(world: World, device: Device, choice: str = "auto") -> Transport:
    """How this rank's messages travel, from memory of ``device``. Collective; ranks may have different devices.

    choice: ``on``: MPI is given the device's memory, or all ranks end; ``off``: it never is; ``auto``: where the library says
    that it takes it and an exchange of some KiB, which is looked at, comes right.

    Raises:
        HpcgnnError: on every rank, for ``on`` where one cannot.
    """
    kind = device.where.type
    takes = choice != "off" and world.takes_memory_of(kind)
    with together(world, "choose how messages leave the device"):
        if choice == "on" and kind != "cpu" and not takes:
            raise HpcgnnError(
                f"--gpu-mpi on needs an MPI library that takes memory of {device.where}, and {world.library} says that it does "
                "not: load one that does, or leave it to --gpu-mpi auto, which goes through memory of the host"
            )
    said = np.array([kind != "cpu", kind != "cpu" and not takes])
    some_device, some_stage = world.allreduce(said.astype(np.int64), "max").tolist()
    if not some_device:
        return HostTransport(world)
    channel = world.channel()
    direct = DeviceTransport(world, device, channel, stages=False, pieces_of=None)
    if world.size == 1 or (not some_stage and _comes_right(world, device, direct)):
        return direct
    if choice == "on" and not some_stage:
        raise HpcgnnError(
            f"--gpu-mpi on was asked for, but {world.library} does not move memory of {device.where} as it says: load another "
            "one, or take --gpu-mpi off",
            agreed=True,
        )
    return DeviceTransport(world, device, channel, stages=kind != "cpu", pieces_of=PIECE_BYTES)


def _comes_right(world: World, device: Device, transport: DeviceTransport) -> bool:
    """Whether some rows of bytes come to the next rank as they were sent, on all ranks. Collective."""
    there, back = (np.zeros(world.size, np.int64) for _ in range(2))
    there[(world.rank + 1) % world.size] = back[(world.rank - 1) % world.size] = _PROOF_ROWS
    sent = _pattern(world.rank).to(device.where)
    received = torch.zeros_like(sent)
    pending = transport.start(sent, received, transport.route(there, back, _PROOF_BYTES), "a trial of --gpu-mpi", None)
    world.watch(pending)
    time.sleep(_PROOF_SECONDS)  # from the thread that makes progress, as in training
    world.wait(pending)
    transport.arrive(pending)
    is_right = torch.equal(received.cpu(), _pattern((world.rank - 1) % world.size))
    return bool(world.allreduce(np.array([is_right], np.int64), "min")[0])


def _pattern(rank: int) -> torch.Tensor:
    """(rows, bytes) uint8 that no other rank of the next 251 has."""
    numbers = torch.arange(_PROOF_ROWS * _PROOF_BYTES, dtype=torch.int64)
    return (numbers * 31 + rank).remainder(251).to(torch.uint8).view(_PROOF_ROWS, _PROOF_BYTES)
