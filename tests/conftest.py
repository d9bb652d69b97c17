"""Fixtures that several test modules share."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Set before torch is imported: its threads would otherwise spin while they wait, in several processes that share few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

# Set before Triton is imported: its interpreter runs the kernels for GPUs here, on tensors of the CPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from covered_by import count_for
from hypothesis import settings
from rank_pool import ROOT, RankPool, forget_mpi, is_open_mpi, launched
from requires import optional_packages, require, require_module
from warm_commands import warm_commands

pytest_plugins = ["durations"]

settings.register_profile("repeatable", derandomize=True)  # a failure here can be repeated by others
settings.load_profile("repeatable")


_LONG_FIRST = ("launches", "slurm", "virtual_cluster", "emulator", "builds", "slow")


class _Module(pytest.Module):
    """A file of tests, which is skipped if it imports an optional package that is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = getattr(error.__cause__, "name", None) or ""
            require(missing.partition(".")[0] not in optional_packages(), missing)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed all generators, so that random numbers do not depend on the selection of tests, and forget MPI's variables."""
    torch.manual_seed(0)
    count_for(item.nodeid)
    forget_mpi()
    if _is_interpreted(item):
        require_module("triton")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start ranks by the fixtures that they use, and begin with the files that take long: the processes of
    ``make test`` take one file after the other, so that fixtures of a module are made once.
    """
    for item in items:
        if {"python_of_ranks", "mpirun"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("launches")
        if _is_interpreted(item):
            item.add_marker("slow")
    places: dict[Path, int] = {}
    for item in items:
        place = next((n for n, name in enumerate(_LONG_FIRST) if item.get_closest_marker(name)), len(_LONG_FIRST))
        places[item.path] = min(place, places.get(item.path, place))
    items.sort(key=lambda item: places[item.path])


def _is_interpreted(item: pytest.Item) -> bool:
    """Return whether a test uses kernels in Triton, each of whose programs takes the interpreter a millisecond."""
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
    """``mpirun(n, args)`` runs ``python *args`` on ``n`` ranks in a separate launch. It is for tests of the start or end of a
    process.
    """
    _require_launcher()
    return launched


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with ``python`` and ``hpcgnn``, which start at once."""
    folder = tmp_path_factory.mktemp("warm")
    with warm_commands(folder):
        yield folder


@pytest.fixture(scope="session")
def python_of_ranks(request: pytest.FixtureRequest) -> str:
    """The Python that starts shared ranks. MPICH gives a rank a connection to its launcher, which a fork elsewhere lacks, and
    CUDA does not work in the fork of a process that has looked for GPUs.
    """
    _require_launcher()
    can_fork = is_open_mpi() and not torch.cuda.is_available()
    return str(request.getfixturevalue("warm") / "python") if can_fork else sys.executable


@pytest.fixture(scope="session")
def warm_hpcgnn(python_of_ranks: str) -> str:
    """The command ``hpcgnn`` beside it."""
    return str(Path(python_of_ranks).with_name("hpcgnn"))


@pytest.fixture(scope="session")
def mpi_ranks(python_of_ranks: str) -> Iterator[Callable[[int], RankPool]]:
    """``mpi_ranks(n)``: ``n`` ranks that run programs and command lines; all tests share one launch."""
    yield from _pools(python_of_ranks, lambda pool: None)


@pytest.fixture(scope="session")
def device_ranks(python_of_ranks: str) -> Iterator[Callable[[int], RankPool]]:
    """The same for programs that use the stand-in (tests/standin).

    torch counts devices at the first backward pass of a process, so the stand-in must be known by then, and it must not appear
    in the processes of other tests.
    """
    from ranks.devices import know_standin

    yield from _pools(python_of_ranks, lambda pool: None if torch.cuda.is_available() else pool.run(know_standin))


def _pools(python: str, prepare: Callable[[RankPool], object]) -> Iterator[Callable[[int], RankPool]]:
    pools: dict[int, RankPool] = {}

    def of(size: int) -> RankPool:
        if size not in pools:
            pools[size] = RankPool(size, python)
            prepare(pools[size])
        return pools[size]

    yield of
    for pool in pools.values():
        pool.let_go()  # tell all to end before waiting for any of them
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running Slurm with one node, which claims to have two GPUs; the value is the environment in which its
    commands find it.
    """
    require(os.geteuid() == 0, "root, to start a Slurm")
    require(all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))), "Slurm and munge (make deps-debian)")
    require(not Path(sys.executable).with_name("mpiexec").exists(), "the system's Open MPI, for srun --mpi=pmix")
    folder = tmp_path_factory.mktemp("slurm") / "node"
    command = [str(ROOT / "tools" / "slurm_single_node.sh")]
    with open(tmp_path_factory.getbasetemp().parent / "slurm.lock", "w") as lock:
        # One at a time: each Slurm takes all cores for its own, and jobs that begin too late on a busy core start again.
        fcntl.flock(lock, fcntl.LOCK_EX)
        up = [*command, "up", folder, "2"]
        started = subprocess.run(up, capture_output=True, text=True, timeout=120, check=False)
        assert started.returncode == 0, started.stdout + started.stderr
        try:
            yield {"SLURM_CONF": str(folder / "slurm.conf")}
        finally:
            subprocess.run([*command, "down", folder], timeout=120, check=True)


def _require_launcher() -> None:
    launcher = Path(sys.executable).with_name("mpiexec")
    require(launcher.exists() or shutil.which("mpiexec") or shutil.which("mpirun"), "an MPI launcher")
