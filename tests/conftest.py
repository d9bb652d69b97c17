"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from requires import require

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "tools" / "mpiexec.sh"

settings.register_profile("repeatable", derandomize=True)  # what fails here fails for whoever looks into it
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The same numbers in every run, whichever tests run."""
    torch.manual_seed(0)


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
    """``mpirun(n, args)``: run ``python *args`` on ``n`` ranks under a real launcher."""
    launcher = Path(sys.executable).with_name("mpiexec")
    require(launcher.exists() or shutil.which("mpiexec") or shutil.which("mpirun"), "an MPI launcher")
    return _run_ranks


def _run_ranks(
    ranks: int,
    args: Sequence[str | Path],
    *,
    threads: int = 1,
    bind: bool = False,
    timeout_seconds: float = 300.0,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *args`` on ``ranks`` ranks of ``threads`` threads; with ``bind``, each on cores of its own.

    Fails the test when the launcher takes longer than ``timeout_seconds`` or, with ``check``, exits non-zero. ``env`` is
    added to this process's environment, with the tests' helpers on the import path.
    """
    binding = ["-N", str(ranks)] if bind else []
    command = [str(STARTER), "-n", str(ranks), "-t", str(threads), *binding, sys.executable, *map(str, args)]
    import_path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": import_path} | dict(env or {}),
        cwd=cwd,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        stdout, stderr = _stop(process)
        pytest.fail(f"no end within {timeout_seconds:.0f} s: {' '.join(command)}\n{stdout}\n{stderr}", pytrace=False)
    if check and process.returncode != 0:
        pytest.fail(f"exit code {process.returncode}: {' '.join(command)}\n{stdout}\n{stderr}", pytrace=False)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a launcher in the way that makes it end its ranks; killed outright, it would leave them behind."""
    process.terminate()
    try:
        return process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
