"""Tells whether an MPI library reads and writes a GPU's memory ("GPU-aware" MPI): by the library's own answer, and by a trial."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import Device
from hpcgnn.world.agreement import raise_on_all_ranks
from hpcgnn.world.transport import PIECE_BYTES, DeviceTransport, HostTransport, Transport
from hpcgnn.world.world import World

# MPICH's numbers for MPIX_GPU_query_support.
_MPICH_CUDA, _MPICH_HIP = 0, 2
_PROOF_ROWS, _PROOF_BYTES, _PROOF_SECONDS = 1 << 14, 64, 0.01  # a MiB: more than libraries send at once


def says_yes(mpi: Any, kind: str) -> bool:
    """Return whether the MPI library says that it takes memory of devices of this type; False if it has no answer. mpi: mpi4py's
    module."""
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
    """The transport of this rank's messages from memory of ``device``. Collective; ranks may have different devices.

    choice: ``on``: MPI is given the device's memory, and it is an error if it cannot take it. ``off``: messages go through
    memory of the host. ``auto``: MPI is given the device's memory if the library says that it takes it and a trial exchange of
    1 MiB a rank arrives unchanged; else messages go through memory of the host.

    Raises:
        HpcgnnError: on every rank, where ``choice`` is ``on`` and MPI cannot take the memory of a rank's device.
    """
    kind = device.torch_device.type
    takes = choice != "off" and world.takes_memory_of(kind)
    with raise_on_all_ranks(world, "choose how messages leave the device"):
        if choice == "on" and kind != "cpu" and not takes:
            raise HpcgnnError(
                f"--gpu-mpi on needs an MPI library that takes memory of {device.torch_device}, but {world.library} says that it "
                "does not: load one that does, or use --gpu-mpi auto, which copies messages through memory of the host"
            )
    said = np.array([kind != "cpu", kind != "cpu" and not takes])
    some_device, some_stage = world.allreduce(said.astype(np.int64), "max").tolist()
    if not some_device:
        return HostTransport(world)
    queue = world.exchange_queue()
    direct = DeviceTransport(world, device, queue, stages=False, piece_bytes=None)
    if world.size == 1 or (not some_stage and _comes_right(world, device, direct)):
        return direct
    if choice == "on" and not some_stage:
        raise HpcgnnError(
            f"--gpu-mpi on was asked for, but {world.library} does not move memory of {device.torch_device} correctly: load "
            "another MPI, or use --gpu-mpi off",
            agreed=True,
        )
    return DeviceTransport(world, device, queue, stages=kind != "cpu", piece_bytes=PIECE_BYTES)


def _comes_right(world: World, device: Device, transport: DeviceTransport) -> bool:
    """Return whether a trial message arrives unchanged at the next rank, from every rank. Collective."""
    there, back = (np.zeros(world.size, np.int64) for _ in range(2))
    there[(world.rank + 1) % world.size] = back[(world.rank - 1) % world.size] = _PROOF_ROWS
    sent = _pattern(world.rank).to(device.torch_device)
    received = torch.zeros_like(sent)
    pending = transport.bind(sent, received, transport.route(there, back, _PROOF_BYTES), "a trial of --gpu-mpi", None)()
    world.watch(pending)
    time.sleep(_PROOF_SECONDS)  # meanwhile the progress thread calls MPI, as in training
    world.wait(pending)
    transport.arrive(pending)
    is_right = torch.equal(received.cpu(), _pattern((world.rank - 1) % world.size))
    return bool(world.allreduce(np.array([is_right], np.int64), "min")[0])


def _pattern(rank: int) -> torch.Tensor:
    """(rows, bytes) uint8 that differs among any 251 consecutive ranks."""
    numbers = torch.arange(_PROOF_ROWS * _PROOF_BYTES, dtype=torch.int64)
    return (numbers * 31 + rank).remainder(251).to(torch.uint8).view(_PROOF_ROWS, _PROOF_BYTES)
