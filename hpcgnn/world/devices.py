"""The device that each rank computes on, a GPU of its node or the host, and the number of its threads."""

from __future__ import annotations

import logging
import math
import os

import numpy as np
import torch
import xxhash

from hpcgnn.base.arguments import AUTO_DEVICE, HOST_DEVICE, check_device_name
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import system_text
from hpcgnn.devices import CPU, Device
from hpcgnn.devices.gpu import Gpus
from hpcgnn.kernels import backend
from hpcgnn.world.world import World, raise_on_all_ranks

_NONE = -1  # stands for the identity of a GPU where a rank has none
_LOG = logging.getLogger("hpcgnn")


def choose_device(world: World, asked: str = AUTO_DEVICE, ranks_per_gpu: int = 1, gpus: Gpus | None = None) -> Device:
    """The device of this rank, which torch and Triton use from now on. Collective; ranks may ask for different ones.

    Args:
        world: all ranks.
        asked: ``cpu``: the host. ``cuda``: the GPU whose number is this rank's number on its node, or the only one that the
            launcher lets this rank see. ``cuda:N``: GPU number N. ``auto``: as ``cuda`` if each rank that does not ask for the
            host gets a GPU that way; else the host.
        ranks_per_gpu: number of ranks that may share one GPU.
        gpus: the GPUs of this machine; None looks for them.

    Raises:
        HpcgnnError: on every rank, where a rank asks for ``cuda`` or ``cuda:N`` and there is no such GPU, or more than
            ``ranks_per_gpu`` ranks would share it.
    """
    gpus = Gpus() if gpus is None else gpus
    with raise_on_all_ranks(world, "choose a device"):
        check_device_name(asked)
    nodes = world.hosts()
    number, problem = _place(world, nodes, asked, ranks_per_gpu, gpus)
    with raise_on_all_ranks(world, "choose a device"):
        if problem is not None and asked != AUTO_DEVICE:
            raise HpcgnnError(f"--device {asked} was asked for on rank {world.rank}, but {problem}")
    identity = _NONE if asked == HOST_DEVICE or problem is not None else _number_of(gpus.identity(number))
    told = world.allgather(np.array([identity, problem is None, asked == AUTO_DEVICE], np.int64))  # O(P) memory
    identities, has_one, is_auto = told.T
    if not has_one.all() or _most_shared(nodes, identities).size > ranks_per_gpu:
        identities = np.where(is_auto, _NONE, identities)
        if asked == AUTO_DEVICE:
            _LOG.info("rank %d computes on the CPU: %s", world.rank, problem or "not every rank has a GPU of its own")
    shared = _most_shared(nodes, identities)
    if shared.size > ranks_per_gpu:
        raise HpcgnnError(
            f"ranks {', '.join(map(str, shared))} would share one GPU: start one rank for each GPU, or allow it with "
            f"--ranks-per-gpu {shared.size}",
            agreed=True,
        )
    device = CPU if identities[world.rank] == _NONE else gpus.device(number)
    device.use()
    return device


def _place(world: World, nodes: np.ndarray, asked: str, ranks_per_gpu: int, gpus: Gpus) -> tuple[int, str | None]:
    """The number of this rank's GPU, and the reason why it can have none, a clause to follow "but". Collective."""
    problem = None if asked == HOST_DEVICE else gpus.problem() or backend.problem_on("cuda")
    count = 0 if asked == HOST_DEVICE or problem is not None else gpus.count()
    # Ranks of a node that see the same GPUs divide them; a launcher may also have given each rank GPUs of its own.
    seen = _number_of(" ".join(sorted(gpus.identity(number) for number in range(count)))) if count else 0
    wants, sees = world.allgather(np.array([asked != HOST_DEVICE, seen], np.int64)).T
    beside = (wants > 0) & (nodes == nodes[world.rank]) & (sees == seen)
    local, on_node = int(beside[: world.rank].sum()), int(beside.sum())
    if asked == HOST_DEVICE or problem is not None:
        return 0, problem
    if asked.startswith("cuda:"):
        number = int(asked.removeprefix("cuda:"))
        there = "is cuda:0 only" if count == 1 else f"are {count} here, cuda:0 to cuda:{count - 1}"
        return number, None if number < count else f"there {there}"
    if count == 1:  # the launcher gave each rank its own GPU, or all ranks of the node share the only one
        return 0, None
    if count * ranks_per_gpu < on_node:
        return 0, (
            f"its node has {on_node} ranks for {count} GPUs: start one rank for each GPU, or let them share with "
            f"--ranks-per-gpu {math.ceil(on_node / count)}"
        )
    return local if count >= on_node else local * count // on_node, None


def _most_shared(nodes: np.ndarray, identities: np.ndarray) -> np.ndarray:
    """The largest group of ranks of one node with the same GPU, given the (P,) nodes and identities of GPUs of all ranks."""
    ranks = np.flatnonzero(identities != _NONE)
    if not ranks.size:
        return ranks
    _, group, sizes = np.unique(
        np.stack((nodes, identities))[:, ranks], axis=1, return_inverse=True, return_counts=True
    )
    return ranks[group.reshape(-1) == int(np.argmax(sizes))]


def _number_of(identity: str) -> int:
    """A hash of 63 bits that tells identities apart."""
    return xxhash.xxh3_64_intdigest(identity.encode()) >> 1


def use_threads(world: World) -> int:
    """Set torch's (and with it the kernels') threads for this rank; returns the number. Collective.

    ``OMP_NUM_THREADS`` wins. Without it, a rank divides the cores that it may run on by the number of ranks that may run on the
    same cores. So both a launcher's binding and a container's set of cores are respected. Rank 0 warns if it starts more threads
    than that share, because an epoch may then take several times as long.
    """
    sharing = world.ranks_on_my_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    fair = max(1, len(os.sched_getaffinity(0)) // sharing)
    threads = int(asked) if asked.isdigit() and int(asked) > 0 else fair
    if threads > fair and world.rank == 0:
        shared = f", which {sharing} ranks share" if sharing > 1 else ""
        logging.getLogger("hpcgnn").warning(
            "OMP_NUM_THREADS=%s starts %d threads on a rank with %d CPUs%s, so that threads wait for each other: set it to %d, "
            "or unset it",
            *(asked, threads, len(os.sched_getaffinity(0)), shared, fair),
        )
    torch.set_num_threads(threads)
    return threads


def openmp_runtimes() -> list[str]:
    """Paths of the OpenMP runtimes in this process: more than one means two thread pools that fight for the cores."""
    paths = {line.split(maxsplit=5)[-1] for line in system_text("/proc/self/maps").splitlines() if "/" in line}
    names = ("libgomp", "libiomp", "libomp")
    return sorted(path for path in paths if os.path.basename(path).startswith(names))
