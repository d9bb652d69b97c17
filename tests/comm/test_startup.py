"""Checks at the start of ranks: other versions, the launcher of another MPI, and calls of MPI that do not return."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hpcgnn.comm import MpiWorld, startup
from hpcgnn.comm.startup import check_alike, check_not_alone
from hpcgnn.comm.thread_world import ThreadWorld, on_threads
from hpcgnn.errors import HpcgnnError

STANDS_STILL = """
import time
from hpcgnn.comm.blocking import limited, stalled
with limited(0.2, stalled("rank 3 of 4", 0.2, "a communicator"), 3):
    pass
time.sleep(0.4)
with limited(0.2, stalled("rank 3 of 4", 0.2, "what comes late"), 3):
    time.sleep(0.4)
time.sleep(2.5)
print("what ends in time goes on", flush=True)
with limited(0.2, stalled("rank 3 of 4", 0.2, "a communicator"), 3):
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_call_that_does_not_end_ends_the_process_with_a_sentence() -> None:
    job = subprocess.run([sys.executable, "-c", STANDS_STILL], capture_output=True, text=True, timeout=120)
    assert (job.returncode, job.stdout) == (1, "what ends in time goes on\n")
    late, never = job.stderr.splitlines()
    assert late.startswith("hpcgnn: error on rank 3: rank 3 of 4 waited 0 s for what comes late: a peer")
    assert never.startswith("hpcgnn: error on rank 3: rank 3 of 4 waited 0 s for a communicator: a peer or a link has")


@pytest.mark.parametrize(
    ("name", "told"), [("OMPI_COMM_WORLD_SIZE", "4"), ("PMI_SIZE", "2"), ("SLURM_STEP_NUM_TASKS", "8")]
)
def test_a_launcher_of_another_mpi_is_told_from_its_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    for each in startup._SIZES:
        monkeypatch.delenv(each, raising=False)
    check_not_alone(1, "Some MPI")
    monkeypatch.setenv(name, told)
    check_not_alone(int(told), "Some MPI")
    with pytest.raises(HpcgnnError, match=rf"started {told} ranks \({name}\).*\(Some MPI\)"):
        check_not_alone(1, "Some MPI")
    monkeypatch.setenv("HPCGNN_ALONE", "1")
    check_not_alone(1, "Some MPI")
    monkeypatch.delenv("HPCGNN_ALONE")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS" if name.startswith("OMPI") else "OMPI_COMM_WORLD_SIZE", "1")
    check_not_alone(1, "Some MPI")  # a launcher that runs within a step of another one


def test_a_process_that_is_alone_in_spite_of_its_launcher_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = SimpleNamespace(rank=0, size=1)
    library = SimpleNamespace(COMM_WORLD=alone, Get_library_version=lambda: "Some MPI 4.1\n")
    monkeypatch.setattr("hpcgnn.comm.mpi_world._mpi", lambda: library)
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(HpcgnnError, match=r"Some MPI 4\.1"):
        MpiWorld()
    assert MpiWorld(alone).size == 1  # type: ignore[arg-type]


class Other(ThreadWorld):
    """A world in which rank 1 has another MPI library."""

    @property
    def library(self) -> str:
        return "MPI 1" if self.rank != 1 else "MPI 2"


def started(world: ThreadWorld, kind: type[ThreadWorld] | None) -> Any:
    if kind is not None:
        world.__class__ = kind
    try:
        return check_alike(world) is world
    except HpcgnnError as error:
        return str(error), error.agreed


def test_ranks_that_are_not_alike_all_say_so() -> None:
    assert on_threads(3, lambda world: started(world, None)) == [True] * 3
    answers = on_threads(3, lambda world: started(world, Other))
    assert answers == [answers[0]] * 3
    sentence, agreed = answers[0]
    assert agreed
    assert sentence.startswith(f"rank 1 runs hpcgnn {startup.__version__} on MPI 2, but rank 0 runs hpcgnn")
