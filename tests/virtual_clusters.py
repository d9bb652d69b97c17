"""Functions for tests with virtual hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import ROOT, is_open_mpi
from requires import require

COMMAND = [sys.executable, "-m", "hpcgnn"]
LONGEST_SECONDS = 150.0


def require_rights() -> None:
    """Skip or fail the test if no cluster can be created."""
    capabilities = int(Path("/proc/self/status").read_text().partition("CapEff:\t")[2].split()[0], 16)
    require(os.geteuid() == 0 and capabilities >> 12 & 1 and capabilities >> 21 & 1, "root, to make network namespaces")
    require(shutil.which("ip") and shutil.which("tc"), "iproute2 (make deps-debian)")
    require(not Path(sys.executable).with_name("mpiexec").exists(), "the system's Open MPI")
    require(is_open_mpi(), "Open MPI")


@contextlib.contextmanager
def default_name() -> Iterator[None]:
    """No other test has virtual hosts of the default name in this context."""
    with open(Path(tempfile.gettempdir(), "hpcgnn-tests-of-virtual-hosts"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start ``hpcgnn *arguments``."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])} | environment,
    )


def virtual_cluster(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``hpcgnn cluster *arguments`` to its end."""
    return hpcgnn("cluster", *arguments, **options)


def hpcgnn(*arguments: object, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``hpcgnn *arguments`` to its end."""
    process = start(*arguments, **environment)
    try:
        stdout, stderr = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        pytest.fail(f"no end within {LONGEST_SECONDS:.0f} s: {arguments}\n{process.communicate()}", pytrace=False)
    assert process.returncode == expect, f"{arguments}: exit code {process.returncode}\n{stdout}\n{stderr}"
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for ``condition``; the test fails if this takes too long."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.05)
