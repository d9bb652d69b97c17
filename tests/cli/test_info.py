"""``hpcgnn info`` and its guarantees: one OpenMP runtime, the launcher's number of threads, the kernels that run."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys

import pytest
import torch

from hpcgnn import kernels
from hpcgnn.cli import train_job
from hpcgnn.devices.gpu import Gpus
from hpcgnn.kernels import backend, library

RUN_ALL_KERNELS = """
import json, torch
from hpcgnn import kernels
from hpcgnn.world.devices import openmp_runtimes
csr = kernels.Csr(torch.tensor([0, 2]), torch.tensor([0, 1]), 2)
for backend in ("native", "jit", "reference"):
    kernels.spmm(csr, torch.ones(2, 3), backend=backend)
print(json.dumps(openmp_runtimes()))
"""


@pytest.mark.mpi
def test_info_on_ranks(mpi_ranks):
    facts = json.loads(mpi_ranks(2).command("info", "--json").stdout)
    assert facts["ranks"] == 2
    assert facts["threads_per_rank"] == 1
    assert facts["kernels"] == "native"
    assert facts["isas"] == library.isas()
    assert facts["isa"] == library.isa()
    assert {"metis", "ldg", "block", "random"} <= set(facts["partitioners"])
    assert isinstance(facts["gpu_memory_to_mpi"], bool)
    if torch.cuda.is_available():
        assert len(facts["gpus"]) == torch.cuda.device_count()
    else:
        assert facts["gpus"] == []
        assert facts["gpu_problem"] == Gpus().problem()
    table = mpi_ranks(2).command("info").stdout
    assert ["isas", *", ".join(library.isas()).split()] in [line.split() for line in table.splitlines()]


@pytest.mark.slow
def test_all_kernels_share_one_openmp_runtime():
    result = subprocess.run([sys.executable, "-c", RUN_ALL_KERNELS], check=True, capture_output=True, text=True)
    assert len(json.loads(result.stdout)) == 1


def test_without_the_native_library_numba_runs_and_training_says_so(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(library, "_HERE", tmp_path / "kernels")
    monkeypatch.setattr(library, "_find", library._find.__wrapped__)  # which keeps no result
    monkeypatch.setattr(backend, "_best", functools.cache(backend._best.__wrapped__))
    assert kernels.resolve() == "jit"
    with pytest.raises(ValueError, match="without a C\\+\\+ compiler"):
        kernels.resolve("native")
    with caplog.at_level(logging.WARNING, logger="hpcgnn"):
        train_job._choose_kernels()
    assert "training uses numba kernels" in caplog.text


def test_the_instruction_set_is_the_one_that_was_asked_for(mpirun):
    """A launch of its own, because a process reads the variable once, at its start."""
    asked = library.isas()[0]
    assert json.loads(mpirun(1, ["-m", "hpcgnn", "info", "--json"], env={"HPCGNN_ISA": asked}).stdout)["isa"] == asked


@pytest.mark.mpi
@pytest.mark.parametrize("isa", ["mmx", "sve1024"])  # the latter's name is known, but no kernels are compiled for it
def test_an_instruction_set_that_cannot_run_is_refused_once(mpirun, isa):
    """A launch of its own, because a process reads the variable once, at its start."""
    result = mpirun(2, ["-m", "hpcgnn", "info"], check=False, env={"HPCGNN_ISA": isa})
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "hpcgnn: error" in line]
    usable = ", ".join(library.isas())
    assert errors == [f"hpcgnn: error: HPCGNN_ISA={isa}: this machine can run {usable}; unset it, or set one of them"]
    assert "Traceback" not in result.stderr
