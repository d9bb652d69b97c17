"""Failures of programs on the ranks of a pool, as a test sees them."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
from rank_pool import RankPool, ThreadPool, forget_mpi
from ranks import failing


@pytest.fixture(scope="module")
def pool(python_of_ranks):
    """A separate pool, because its ranks do not survive these tests."""
    pool = RankPool(2, python_of_ranks)
    yield pool
    pool.close()


@pytest.mark.mpi
def test_a_wrong_rank_is_named_with_the_values_there_and_nobody_waits_for_it(pool):
    with pytest.raises(pytest.fail.Exception) as told:
        pool.run(failing.one_is_wrong, 1)
    text = str(told.value)
    assert text.startswith("one_is_wrong on 2 MPI ranks\nrank 1: Traceback")
    assert "AssertionError: not what was wanted" in text
    assert "numbers = {'found': 1, 'wanted': 0}" in text
    assert "rank 0: did not come to an end" in text
    assert pool.run(failing.rank_squared) == [0, 1]


@pytest.mark.mpi
def test_a_rank_that_ends_is_told(pool):
    with pytest.raises(pytest.fail.Exception, match=r"one_dies: rank [01] of 2 has ended"):
        pool.run(failing.one_dies)


@pytest.mark.mpi
def test_a_failing_command_has_its_codes_and_words(mpi_ranks):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)exit codes \[1, 1\]: hpcgnn train no.h5.*there is no file"):
        mpi_ranks(2).command("train", "no.h5", "--out", "run")


def test_an_assertion_on_a_thread_is_the_tests_own():
    with pytest.raises(AssertionError, match="not what was wanted"):
        ThreadPool(2).run(failing.one_is_wrong, 1)
    assert ThreadPool(3).run(failing.rank_squared) == [0, 1, 4]


def test_variables_that_mpi_has_set_in_this_process_do_not_reach_a_launcher() -> None:
    ctypes.CDLL(None).setenv(b"PMIX_OF_A_TEST", b"1", 1)
    forget_mpi()
    assert "PMIX_OF_A_TEST" not in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
