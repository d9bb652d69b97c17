"""``hpcgnn info``: versions, libraries and hardware of this installation."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import click

from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON
from hpcgnn.world import MpiWorld, check_alike, raise_on_all_ranks


@click.command(epilog="\b\nExample\n  mpirun -n 2 hpcgnn info")
@AS_JSON
def info(as_json: bool) -> None:
    """Show versions, the MPI library, kernels, instruction sets, GPUs, partitioners and threads.

    Under mpirun or srun, rank 0 prints. Include this output in questions and bug reports; `hpcgnn doctor` also checks whether
    everything works together.
    """
    from hpcgnn.doctor import software
    from hpcgnn.world.devices import use_threads

    world = check_alike(MpiWorld())
    threads = use_threads(world)
    with raise_on_all_ranks(world, "run a kernel"):  # loads the kernels that training would use
        kernels = software.kernels_in_use()
    gpus, versions = software.gpus_seen(), software.versions()
    facts: dict[str, Any] = {
        **{name: versions[name] for name in ("hpcgnn", "python", "torch", "numba", "numpy")},
        "mpi": world.library,
        "ranks": world.size,
        "threads_per_rank": threads,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        **{name: kernels[name] for name in ("kernels", "isa", "isas")},
        "gpus": [
            f"{name}, {console.size(free)} free" for name, free in zip(gpus["names"], gpus["free_bytes"], strict=True)
        ],
        "gpu_problem": gpus["problem"],
        "gpu_memory_to_mpi": world.takes_memory_of("cuda"),
        "partitioners": software.partitioners(),
        "openmp_runtimes": kernels["openmp_runtimes"],
    }
    if world.rank == 0 and as_json:
        print(json.dumps(facts))
    elif world.rank == 0:
        shown = {
            name.replace("_", " "): ", ".join(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        console.table("hpcgnn", shown.items())
