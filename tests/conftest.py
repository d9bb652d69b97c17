"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch, whose threads would otherwise spin while they wait, in each of the processes that share few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

# Before Triton is imported: its interpreter runs the kernels for GPUs here, on tensors of the CPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import settings
from rank_pool import ROOT, RankPool, launched
from requires import require

settings.register_profile("repeatable", derandomize=True)  # what fails here fails for whoever looks into it
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The same numbers in every run, whichever tests run."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start ranks are marked by what they use: the Makefile runs them one by one, beside all others."""
    for item in items:
        if {"mpi_ranks", "device_ranks", "mpirun"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("launches")
        if _is_interpreted(item):
            item.add_marker("slow")


def _is_interpreted(item: pytest.Item) -> bool:
    """Kernels in Triton, each of whose programs takes the interpreter a millisecond."""
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    return item.path.stem.startswith("test_triton") or any(isinstance(one, str) and one == "triton" for one in given)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """``shared_data("cora.npz")``: the path of a real graph, in ``$HPCGNN_DATA`` or in ``../shared/data``."""
    folder = Path(os.environ.get("HPCGNN_DATA", ROOT.parent / "shared" / "data"))

    def find(name: str) -> Path:
        path = folder / name
        require(path.exists(), f"the graph {path} (HPCGNN_DATA names another folder)")
        return path

    return find


@pytest.fixture(scope="session")
def mpirun() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``mpirun(n, args)``: ``python *args`` on ``n`` ranks, in a launch of its own. For what a process's start or end is."""
    _require_launcher()
    return launched


@pytest.fixture(scope="session")
def mpi_ranks() -> Iterator[Callable[[int], RankPool]]:
    """``mpi_ranks(n)``: ``n`` ranks, of one launch for all tests, that run programs and command lines."""
    yield from _pools(lambda pool: None)


@pytest.fixture(scope="session")
def device_ranks() -> Iterator[Callable[[int], RankPool]]:
    """The same for programs that use the stand-in (tests/standin): torch counts devices at a process's first backward pass, when
    it must be known, and it is to be left in no other test's processes."""
    from ranks.devices import know_standin

    yield from _pools(lambda pool: None if torch.cuda.is_available() else pool.run(know_standin))


def _pools(prepare: Callable[[RankPool], object]) -> Iterator[Callable[[int], RankPool]]:
    _require_launcher()
    pools: dict[int, RankPool] = {}

    def of(size: int) -> RankPool:
        if size not in pools:
            pools[size] = RankPool(size)
            prepare(pools[size])
        return pools[size]

    yield of
    for pool in pools.values():
        pool.let_go()  # all, before any is waited for
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running Slurm of one node, which claims to have two GPUs; the value is the environment in which its commands find it."""
    require(os.geteuid() == 0, "root, to start a Slurm")
    require(all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))), "Slurm and munge (make deps-debian)")
    require(not Path(sys.executable).with_name("mpiexec").exists(), "the system's Open MPI, for srun --mpi=pmix")
    folder = tmp_path_factory.mktemp("slurm") / "node"
    command = ROOT / "tools" / "slurm_single_node.sh"
    started = subprocess.run([command, "up", folder, "2"], capture_output=True, text=True, timeout=120, check=False)
    assert started.returncode == 0, started.stdout + started.stderr
    try:
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([command, "down", folder], timeout=120, check=True)


def _require_launcher() -> None:
    launcher = Path(sys.executable).with_name("mpiexec")
    require(launcher.exists() or shutil.which("mpiexec") or shutil.which("mpirun"), "an MPI launcher")
