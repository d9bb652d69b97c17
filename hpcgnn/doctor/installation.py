"""Facts about this installation, for ``hpcgnn info`` and ``hpcgnn doctor``."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcgnn.base.version import __version__

# Optional packages, and the features that need them.
EXTRAS = {
    "torch_geometric": "models of PyG and `convert pyg:` (pip install torch-geometric)",
    "ogb": "`convert ogb:` (pip install ogb)",
    "pyarrow": "`convert parquet:` (pip install pyarrow)",
    "tensorboard": "`train --tensorboard` (pip install tensorboard)",
}


def versions() -> dict[str, str]:
    """The versions of hpcgnn and of the packages that it computes with, without importing them.

    Raises:
        importlib.metadata.PackageNotFoundError: if a package is missing.
    """
    packages = {name: metadata.version(name) for name in ("torch", "numba", "numpy", "mpi4py")}
    return {"hpcgnn": __version__, **packages, "python": platform.python_version()}


def kernels_in_use() -> dict[str, Any]:
    """The backend and the instruction set that run, found by running a kernel. Raises HpcgnnError for a wrong ``HPCGNN_ISA``."""
    import torch

    from hpcgnn import kernels
    from hpcgnn.kernels.native import library
    from hpcgnn.world.devices import openmp_runtimes

    kernels.spmm(
        kernels.Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), torch.ones(1, 1)
    )  # loads the kernels that will run
    return {
        "kernels": kernels.resolve(),
        "missing": library.missing(),
        "isa": library.last_isa(),
        "isas": library.isas(),
        "openmp_runtimes": openmp_runtimes(),
    }


def gpus_seen() -> dict[str, Any]:
    """The GPUs that this process sees. problem: the reason why they cannot be used, or None."""
    from hpcgnn.devices.gpu import Gpus
    from hpcgnn.kernels import backend

    gpus = Gpus()
    unusable = gpus.problem()
    numbers = [] if unusable else range(gpus.count())
    devices = [gpus.device(number) for number in numbers]
    return {
        "problem": unusable or backend.problem_on("cuda"),
        "names": [gpu.name for gpu in devices],
        "free_bytes": [gpu.free_bytes() or 0 for gpu in devices],
        "identities": [gpus.identity(number) for number in numbers],
    }


def partitioners() -> list[str]:
    """The partitioning methods whose libraries can be loaded."""
    from hpcgnn.partition.methods import available_methods

    return available_methods()


def missing_extras() -> list[str]:
    """The packages of :data:`EXTRAS` that are not installed."""
    return [name for name in EXTRAS if importlib.util.find_spec(name) is None]


def mpi_started() -> tuple[str, bool]:
    """The MPI library of this process in one line (empty if MPI was not started), and whether a second thread may call it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return "", False
    library = mpi.Get_library_version().splitlines()[0].strip().rstrip("\0")
    return library, mpi.Query_thread() >= mpi.THREAD_SERIALIZED


def mpi_libraries() -> list[str]:
    """Paths of the MPI libraries in this process. Two libraries in one process receive each other's handles."""
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return sorted(set(re.findall(r"\S+/libmpi(?:ch)?\.so\S*", text)))
