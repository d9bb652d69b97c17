"""``hpcgnn.gather``: each node's row is in its place on rank 0, bit for bit, and all ranks refuse wrong arguments alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rank_pool import RankPool, ThreadPool
from ranks import gathering

PROGRAMS = (gathering.everything, gathering.in_windows)
RANKS = (1, 3)  # the last of three owns no node


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_of_all_types_and_in_windows(tmp_path: Path, program: Callable, ranks: int) -> None:
    ThreadPool(ranks).run(program, str(tmp_path))


def test_what_one_rank_may_not_give(tmp_path: Path) -> None:
    found = ThreadPool(2).run(gathering.refused, str(tmp_path))
    assert found[0] == found[1]
    row = "scores of rank 1 must have a row for each of its "
    expected = [
        row,
        row,
        row,
        "scores of rank 1 are float32 of width 3, those of rank 0 float32 of width 2",
        "scores of rank 1 are float32 without a width, those of rank 0",
        "scores of rank 1 are float64 of width 2, those of rank 0 float32 of width 2",
        "scores must be a dense torch.Tensor, not a sparse tensor",
        "scores must hold numbers, not <U1",
        "scores must be a torch.Tensor or a numpy array, not list",
        "scores must be a torch.Tensor or a numpy array, not NoneType",
    ]
    assert len(found[0]) == len(expected)
    for sentence, start in zip(found[0], expected, strict=True):
        assert sentence.startswith(start)


def test_on_mpi(tmp_path: Path, mpi_ranks: Callable[[int], RankPool]) -> None:
    for program in PROGRAMS:
        mpi_ranks(2).run(program, str(tmp_path))
