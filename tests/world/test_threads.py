"""The threads of a rank follow its launcher: torch, the native kernels and numba use exactly as many as the launcher gave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from requires import require

from hpcgnn.world import devices

pytestmark = pytest.mark.mpi  # each in a launch of its own, because the start of a process decides about its threads

PROGRAM = Path(__file__).parents[1] / "ranks" / "threads.py"
CORES = len(os.sched_getaffinity(0))


def works_with(chosen: int) -> dict[str, int]:
    return dict.fromkeys(("chosen", "torch", "native", "jit"), chosen)


def test_a_rank_that_is_not_bound_uses_all_cores(mpirun):
    assert json.loads(mpirun(1, [PROGRAM, "unset"]).stdout) == [{"cores": CORES} | works_with(CORES)]


def test_ranks_use_the_cores_that_they_are_bound_to(mpirun):
    require(CORES > 1, "2 cores")
    for rank in json.loads(mpirun(2, [PROGRAM, "unset"], bind=True).stdout):
        assert rank == {"cores": rank["cores"]} | works_with(rank["cores"])  # hardware threads of a core count, too


@pytest.mark.parametrize(
    ("asked", "sharing", "rank", "told"),
    [
        ("64", 1, 0, "OMP_NUM_THREADS=64 starts 64 threads on a rank with 4 CPUs, so that"),
        ("4", 2, 0, "OMP_NUM_THREADS=4 starts 4 threads on a rank with 4 CPUs, which 2 ranks share, so that"),
        ("64", 1, 1, None),
        ("4", 1, 0, None),
        ("1", 8, 0, None),
        ("", 1, 0, None),
        ("", 2, 0, None),
    ],
)
def test_the_number_that_was_asked_for_wins_and_more_than_cores_are_told(
    monkeypatch, caplog, asked, sharing, rank, told
):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    used = []
    monkeypatch.setattr(devices.torch, "set_num_threads", used.append)
    with caplog.at_level("WARNING", logger="hpcgnn"):
        devices.use_threads(SimpleNamespace(rank=rank, ranks_on_my_cores=lambda: sharing))
    assert [record.getMessage().startswith(told) for record in caplog.records] == ([] if told is None else [True])
    assert used == [int(asked or 4 // sharing)]  # ranks that are not bound share the cores
