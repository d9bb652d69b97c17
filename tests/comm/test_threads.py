"""The threads of a rank follow its launcher: torch, the native kernels and numba use exactly as many as the launcher gave."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from requires import require

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parents[1] / "ranks" / "threads.py"
CORES = len(os.sched_getaffinity(0))


def works_with(chosen: int) -> dict[str, int]:
    return dict.fromkeys(("chosen", "torch", "native", "jit"), chosen)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_not_bound_share_the_cores(mpirun, ranks):
    require(ranks <= CORES, f"{ranks} cores")
    found = json.loads(mpirun(ranks, [PROGRAM, "unset"]).stdout)
    assert found == [{"cores": CORES} | works_with(CORES // ranks)] * ranks


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rank_uses_the_cores_that_it_is_bound_to(mpirun, threads):
    ranks = 2 // threads
    require(CORES > 1, "2 cores")
    found = json.loads(mpirun(ranks, [PROGRAM, "unset"], threads=threads, bind=True).stdout)
    for rank in found:
        # Hardware threads of a bound core count, too.
        assert rank["cores"] >= threads
        assert rank == {"cores": rank["cores"]} | works_with(rank["cores"])


def test_a_number_that_was_asked_for_wins(mpirun):
    require(CORES > 1, "2 cores")
    assert json.loads(mpirun(1, [PROGRAM], threads=1).stdout) == [{"cores": CORES} | works_with(1)]
