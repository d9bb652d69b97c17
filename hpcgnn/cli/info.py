"""``hpcgnn info``: what this installation found."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import click

from hpcgnn.cli import console
from hpcgnn.comm import MpiWorld, check_alike, together


@click.command(epilog="\b\nExample\n  mpirun -n 2 hpcgnn info")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def info(as_json: bool) -> None:
    """Show versions, the MPI library, kernels, instruction sets, GPUs, partitioners and threads."""
    import numba
    import numpy
    import torch

    from hpcgnn import kernels
    from hpcgnn.comm.threads import openmp_runtimes, use_threads
    from hpcgnn.devices.gpus import Gpus
    from hpcgnn.kernels import backend
    from hpcgnn.kernels.native import library
    from hpcgnn.partition.methods import available_methods
    from hpcgnn.version import __version__

    world = check_alike(MpiWorld())
    threads = use_threads(world)
    with together(world, "run a kernel"):  # loads what will run
        kernels.spmm(kernels.Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), torch.ones(1, 1))
    gpus = Gpus()
    unusable = gpus.problem()
    problem = unusable or backend.problem_on("cuda")
    devices = [] if unusable else [gpus.device(number) for number in range(gpus.count())]
    facts: dict[str, Any] = {
        "hpcgnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numpy": numpy.__version__,
        "mpi": world.library,
        "ranks": world.size,
        "threads_per_rank": threads,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "kernels": kernels.resolve(),
        "isa": library.last_isa(),
        "isas": library.isas(),
        "gpus": [f"{gpu.name}, {console.size(gpu.free_bytes() or 0)} free" for gpu in devices],
        "gpu_problem": problem,
        "gpu_memory_to_mpi": world.takes_memory_of("cuda"),
        "partitioners": available_methods(),
        "openmp_runtimes": openmp_runtimes(),
    }
    if world.rank == 0 and as_json:
        print(json.dumps(facts))
    elif world.rank == 0:
        shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
        console.table("hpcgnn", shown.items())
