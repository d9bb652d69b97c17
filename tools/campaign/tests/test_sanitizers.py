"""The verdicts of the section on sanitizers: outputs that count as failures."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from campaign import sanitizers
from campaign.processes import Ended
from campaign.run import ROOT
from campaign.section import FAILED, RIGHT


@pytest.mark.parametrize(
    "said",
    [
        "==3==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1\nall passed",
        "native/rows.h:3:4: runtime error: null pointer passed as argument 2\nall passed",
    ],
)
def test_a_report_is_a_failure_whatever_the_exit_code(said):
    assert sanitizers.verdict(said, 0)[0] == FAILED


def test_ends_of_programs():
    assert sanitizers.verdict("all passed", 0) == (RIGHT, "")
    assert sanitizers.verdict("all passed", -11)[0] == FAILED
    assert sanitizers.verdict("all passed", None)[0] == FAILED


def test_tests_that_did_not_run_have_not_passed():
    assert sanitizers.passed(Ended(0, "12 passed, 3 deselected in 1.0s", "", 1.0))[0] == RIGHT
    assert sanitizers.passed(Ended(0, "12 skipped in 1.0s", "", 1.0))[0] == FAILED
    assert sanitizers.passed(Ended(1, "1 failed, 12 passed in 1.0s", "", 1.0))[0] == FAILED


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("[vm:27513] WARNING: MPI_Win still allocated in MPI_Finalize", True),
        ("WARNING: 1 unnamed MPI_File handles still allocated at MPI_FINALIZE", True),
        ("not freed via MPI_FREE_MEM before invoking MPI_FINALIZE:", True),
        ("note: run: 4 ranks", False),
    ],
)
def test_what_mpi_says_of_what_is_left(line, is_one):
    assert bool(sanitizers._LEFT_OPEN.search(line)) == is_one


def test_each_file_of_tests_has_tests_to_run():
    """A choice of tests by their names must find some in each file."""
    chosen = [(f"kernels/{name}.py", "native") for name in sanitizers._FROM_PYTHON] + [*sanitizers._WITH_BOUNDS]
    missing = []
    for words, files in itertools.groupby(sorted(chosen, key=lambda each: each[1]), key=lambda each: each[1]):
        names = [f"tests/{name}" for name, _ in files]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-n",
            "0",
            *names,
            *(("-k", words) if words else ()),
        ]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
        missing += [f"{name}: {words}" for name in names if f"{name}::" not in listed]
    assert not missing
