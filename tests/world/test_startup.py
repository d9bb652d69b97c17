"""Checks at the start of ranks: other versions, the launcher of another MPI, and calls of MPI that do not return."""

from __future__ import annotations

import os
import queue
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hpcgnn.base.errors import HpcgnnError, StalledError
from hpcgnn.world import MpiWorld
from hpcgnn.world import world as startup
from hpcgnn.world.thread_world import ThreadWorld, on_threads
from hpcgnn.world.waiting import limited, stalled
from hpcgnn.world.world import check_alike, check_not_alone

LONGEST_SECONDS = 60.0


def test_a_call_that_does_not_end_ends_the_process_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said, codes = queue.Queue[str](), queue.Queue[int]()
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=said.put, flush=lambda: None))
    monkeypatch.setattr(os, "_exit", codes.put)

    def assert_over(timers: list[threading.Thread]) -> None:
        assert timers
        for timer in timers:
            timer.join(LONGEST_SECONDS)
            assert not timer.is_alive()
        assert codes.empty()

    error, longer = stalled("rank 3 of 4", 0.2, "what ends in time"), 9 * LONGEST_SECONDS
    assert str(error).startswith("rank 3 of 4 waited 0 s for what ends in time: a peer or")
    assert [stalled("a rank", seconds, "it").grace_seconds for seconds in (0.2, 20, 2000)] == [2.0, 20, 60.0]
    with limited(longer, error, 3, "what ends in time", say_seconds=longer):
        timers = timers_now()
    assert_over(timers)
    assert said.empty()
    with limited(0, StalledError("what comes late", grace_seconds=LONGEST_SECONDS), 3, "it"):
        assert said.get(timeout=LONGEST_SECONDS) == "hpcgnn: error on rank 3: what comes late\n"
        timers = timers_now()
    assert_over(timers)
    with limited(0, StalledError("what never comes", grace_seconds=0), 3, "it"):
        assert codes.get(timeout=LONGEST_SECONDS) == 1
    assert said.get() == "hpcgnn: error on rank 3: what never comes\n"


def timers_now() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "limit"]


def test_a_launcher_of_another_mpi_is_told_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in startup._SIZES:
        monkeypatch.delenv(each, raising=False)
    check_not_alone(1, "Some MPI")
    for name, other in (("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"), ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")):
        with monkeypatch.context() as launched:
            launched.setenv(name, "4")
            check_not_alone(4, "Some MPI")
            with pytest.raises(HpcgnnError, match=rf"started 4 ranks \({name}\).*\(Some MPI\)"):
                check_not_alone(1, "Some MPI")
            launched.setenv(other, "1")
            check_not_alone(1, "Some MPI")  # a launcher that runs within a step of another one
            launched.delenv(other)
            alone = SimpleNamespace(rank=0, size=1)
            library = SimpleNamespace(COMM_WORLD=alone, Get_library_version=lambda: "Some MPI 4.1\n")
            launched.setattr("hpcgnn.world.mpi_world._mpi", lambda library=library: library)
            with pytest.raises(HpcgnnError, match=r"Some MPI 4\.1"):
                MpiWorld()
            assert MpiWorld(alone).size == 1  # type: ignore[arg-type]
            launched.setenv("HPCGNN_ALONE", "1")
            check_not_alone(1, "Some MPI")


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
