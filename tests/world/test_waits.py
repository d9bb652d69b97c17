"""The line about waits that take long, and the end of a job when a user's program ends on one rank."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import small_graphs
from rank_pool import ROOT
from ranks.waits import told_of_a_late_rank

from hpcgnn.world.waiting import _limit, sentence, stalled

PROGRAM = ROOT / "tests" / "ranks" / "users_program.py"


@pytest.mark.parametrize(
    ("others", "calls", "wanted"),
    [
        ([1, 2], {1: "gradients"}, " for rank 2"),
        ([1, 2, 3], {}, " for ranks 1, 2 and 3"),
        ([1, 2, 3], {1: "gradients", 3: "metric counts"}, " for rank 2; rank 3 waits in 'metric counts'"),
        ([1, 2], {1: "gradients", 2: "metric counts"}, "; rank 2 waits in 'metric counts'"),
        ([1, 2], {1: "gradients", 2: "gradients"}, ", and so have all other ranks: a link may have stopped"),
        (range(1, 1000), {}, " for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 991 others"),
    ],
)
def test_the_line_names_the_call_and_the_ranks_that_are_away(others, calls, wanted):
    assert (
        sentence(0, 30.2, "gradients", list(others), calls)
        == f"rank 0 has waited for 30 s in the call 'gradients'{wanted}"
    )


@pytest.mark.mpi
@pytest.mark.parametrize(("late", "level"), [(0, "ERROR"), (1, "WARNING")])
def test_one_rank_says_who_is_late(mpi_ranks, tmp_path, late, level):
    lines = mpi_ranks(2).run(told_of_a_late_rank, late, tmp_path / "said")
    assert lines[late] == []
    (line,) = lines[1 - late]
    assert re.sub(r"for \d+ s", "for 0 s", line) == (
        f"{level} rank {1 - late} has waited for 0 s in the call 'the numbers of all' for rank {late}"
    )


@pytest.mark.parametrize(("rank", "level"), [(0, "WARNING"), (1, "ERROR"), (2, None)])
def test_calls_that_block_are_told_by_two_ranks(caplog, rank, level):
    """Either of them may be the one that does not come. Here the call ends before its limit."""
    waits = iter([False, True])
    is_over = SimpleNamespace(wait=lambda seconds: next(waits))
    _limit(1800.0, 30.0, stalled("rank 3 of 4", 1800.0, "a window"), rank, "a window", is_over)
    wanted = [(level, f"rank {rank} has waited for 30 s for a window")] if level else []
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == wanted


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "said", "aborts"), [
    ("raises in on_epoch", 1, ["ZeroDivisionError: of rank 1"], True),
    ("exits", 3, [], True),
    ("refused on all", 1, ["HpcgnnError: all say no"] * 2, False),  # ends through MPI's end
])  # fmt: skip
def test_a_rank_that_ends_alone_ends_the_job(mpirun, tmp_path, how, code, said, aborts):
    """Without this, the others would wait for 1,800 s. What the rank has written is in its file."""
    small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(60, 200), 2)
    ended = mpirun(2, [PROGRAM, how, tmp_path], check=False, timeout_seconds=120)
    assert ended.returncode == code, ended.stderr
    lines = [line for rank in range(2) for line in (tmp_path / f"said-{rank}").read_text().splitlines()]
    assert [line.partition("errors.")[2] or line for line in lines if "Error: " in line] == said
    assert ("MPI_ABORT" in ended.stderr) <= aborts
    assert (tmp_path / "notes-1").read_text() == "kept"


# Each ending in a fork of one process, in which nothing else of the program runs; the forks print their number and the code.
ENDING = """
import os, sys, threading
from hpcgnn.world import job
from hpcgnn.base.errors import HpcgnnError

def fail():
    1 / 0

def refuse():
    raise HpcgnnError('on all ranks', agreed=True)

def in_thread(target, takes_part=False):
    thread = threading.Thread(target=target, args=(3,) * (target is sys.exit))
    job.taking_part.update({thread} if takes_part else ())
    thread.start()
    thread.join()

for number, ending in enumerate(sys.argv[1:]):
    if not os.fork():
        break
    os.wait()
else:
    os._exit(0)
job.abort_at_exit = lambda code, grace=0: print(number, code)
job.abort_if_parallel = lambda code: print(number, code)
job.end_all_at_error()
exec(ending)
"""
CODES = {
    "sys.exit(3)": 3,
    "sys.exit('no more')": 1,
    "exit(4)": 4,
    "1 / 0": 1,
    "raise KeyboardInterrupt": None,
    "sys.exit(0)": None,
    "sys.exit()": None,
    "try: sys.exit(3)\nexcept SystemExit: pass": None,
    "raise HpcgnnError('on all ranks', agreed=True)": None,
    "raise HpcgnnError('here')": 1,
    "os.fork() or sys.exit(3)": None,
    "in_thread(fail)": None,
    "in_thread(fail, takes_part=True)": 1,
    "in_thread(sys.exit, takes_part=True)": None,
    "in_thread(refuse, takes_part=True)": None,
}


def test_which_ends_of_a_program_are_the_jobs() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, *CODES], capture_output=True, text=True, check=False)
    found = dict(line.split() for line in ended.stdout.splitlines())
    assert {ending: int(found.get(str(number), 0)) or None for number, ending in enumerate(CODES)} == CODES, (
        ended.stderr
    )
    assert ended.stderr.count("ZeroDivisionError: ") == 3, "of the process and of two threads"
