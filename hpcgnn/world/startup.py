"""Checks at the start of a job: that its ranks know of each other, and that all run one version of hpcgnn on one MPI library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import xxhash

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.world.agreement import raise_on_all_ranks

if TYPE_CHECKING:
    from hpcgnn.world.world import World

W = TypeVar("W", bound="World")
# Variables in which Open MPI, MPICH, MVAPICH and Slurm's steps give a rank the number of ranks. A batch script is in no step.
_ALONE = "HPCGNN_ALONE"
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def told_sizes() -> dict[str, int]:
    """The number of ranks according to each variable of a launcher that is set; empty outside a launcher."""
    return {name: int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdecimal()}


def check_not_alone(size: int, library: str) -> None:
    """Raise HpcgnnError for a process that MPI says is alone, though its launcher has started several: P jobs of one rank each
    would write the same files. Not collective."""
    told = told_sizes()
    if size > 1 or not told or min(told.values()) == 1 or os.environ.get(_ALONE):
        return
    name, ranks = next(iter(told.items()))
    raise HpcgnnError(
        f"the launcher has started {ranks} ranks ({name}), but in each of them MPI sees only that rank, because the launcher "
        f"belongs to another MPI than the one that mpi4py has loaded ({library}): use `hpcgnn launch -n {ranks}`, or the mpiexec "
        f"of that library; or set {_ALONE}=1 if each process is to be a separate job"
    )


def check_alike(world: W) -> W:
    """Return ``world`` if all its ranks run one version of hpcgnn on one MPI library. Collective: one small reduction.

    It is the first collective of a job, because later ones may differ between versions.

    Raises:
        HpcgnnError: on all ranks, where a rank runs another version or library than rank 0.
    """
    # After the first comma, Open MPI names the person and the host that built it, which may differ from node to node.
    mine = f"hpcgnn {__version__} on {world.library.partition(',')[0]}"
    digest = np.array([xxhash.xxh3_64_intdigest(mine.encode())], np.uint64).view(np.int64)
    most = world.allreduce(np.concatenate((digest, ~digest)), "max", "the other ranks to start")
    if most[0] == ~most[1]:
        return world
    first = world.broadcast(mine, what="the version of rank 0")
    with raise_on_all_ranks(world, "compare versions"):
        if mine != first:
            raise HpcgnnError(
                f"rank {world.rank} runs {mine}, but rank 0 runs {first}: install one version of both on all nodes"
            )
    return world
