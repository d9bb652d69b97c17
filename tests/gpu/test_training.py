"""Training on a GPU equals training on the host in losses, messages and checkpoints, and a step never waits for the GPU."""

from __future__ import annotations

import random
import subprocess
import sys

import matrix
import pytest
import torch
from gpu import programs
from gpu.programs import relative
from lab.bench.as_gpu import environment
from requires import EVERYTHING, require_module

MODELS = ["sage", "gcn", "gat", "gatv2", "gcnii", "rgcn", "rgat", "hgt", "gine", "transformer"]
if not torch.cuda.is_available() and not EVERYTHING:  # the stand-in computes on the host
    MODELS = random.Random(matrix.seed()).sample(MODELS, 4)
CLOSE = 1e-5


@pytest.fixture
def one(device_ranks):
    """``one(program, *arguments)``: the result of a program on a single rank."""
    return lambda program, *arguments: device_ranks(1).run(program, *arguments)[0]


def test_a_model_of_pyg_learns_the_same(kind, one, tmp_path):
    require_module("torch_geometric")
    host, device = (one(programs.losses_of_pyg, tmp_path, each) for each in ("cpu", kind))
    assert relative(device.losses, host.losses) < CLOSE


@pytest.mark.mpi
@pytest.mark.parametrize("model", MODELS)
def test_ranks_that_share_a_device_learn_what_one_process_does(kind, one, device_ranks, tmp_path, model):
    # settings that do not enlarge the rounding errors of float32 in a few epochs
    settings = {"model": model, "norm": "layer", "dropout": 0.5}
    alone = one(programs.losses_of, tmp_path, "cpu", settings)
    for size in (1, 2):
        for found in device_ranks(size).run(programs.losses_of, tmp_path, kind, settings | {"gpu_mpi": "off"}):
            assert relative(found.losses, alone.losses) < CLOSE
            assert found.staged == (size > 1)  # a single rank sends nothing
            assert found.waits == 0, "the host waits for nothing in a step"


@pytest.mark.mpi
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_a_mixed_job_receives_the_same_bytes(kind, device_ranks, tmp_path, bits):
    jobs = [
        device_ranks(2).run(programs.received_bytes, tmp_path, each, bits) for each in ("cpu", f"mixed {kind}", kind)
    ]
    assert jobs[0] == jobs[1] == jobs[2]


@pytest.mark.mpi
def test_a_mixed_job_learns_the_same(kind, device_ranks, tmp_path):
    host, mixed = (
        device_ranks(2).run(programs.losses_of, tmp_path, each, {"model": "gcn"}) for each in ("cpu", f"mixed {kind}")
    )
    for before, after in zip(host, mixed, strict=True):
        assert relative(after.losses, before.losses) < CLOSE
        assert after.bytes_sent == before.bytes_sent
    assert [rank.staged for rank in mixed] == [False, True]


def test_a_checkpoint_moves_between_devices(kind, one, tmp_path):
    unbroken = one(programs.losses_of, tmp_path, "cpu", {"model": "sage"}).losses
    for kinds in ((kind, "cpu"), ("cpu", kind)):
        assert relative(one(programs.moved_between, tmp_path, kinds), unbroken) < CLOSE


OUT_OF_MEMORY = """
import sys, torch
from hpcgnn.cli.main import main
{}
sys.argv = ["hpcgnn", "bench", "quantize", "--rows", "262144", "--device", "cuda"]
main()
"""
LIMITS = {
    "cuda": "torch.cuda.set_per_process_memory_fraction(1e-3)",
    "standin": "torch.ops.standin.limit_memory(1 << 26)",
}


@pytest.mark.slow
def test_out_of_memory_is_one_sentence(kind):
    command = [sys.executable, "-c", OUT_OF_MEMORY.format(LIMITS[kind])]
    env = environment() if kind == "standin" else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("hpcgnn:")]
    assert "out of memory on the GPU" in sentence
