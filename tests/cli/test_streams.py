"""Standard output that cannot be written: one line on standard error and exit code 1; files are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import said

FULL = "/dev/full"  # each write fails as on a full disk
HPCGNN = f"{sys.executable} -m hpcgnn"
GRAPH = Path(__file__).parents[1] / "data" / "graph-version-4.h5"


def ended(words: str, shell: str = "", *, unbuffered: bool = False) -> tuple[int, str, list[str]]:
    """The exit code of a command with the redirections of a shell, its standard output, and the lines of the other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONUNBUFFERED": "1"} if unbuffered else {}
    line = f"{HPCGNN} {words} {shell}"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


def refusal(reason: str) -> list[str]:
    where = "cannot write to standard output"
    return [f"hpcgnn: error: {where}: {reason}; files that this command has written are complete"]


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("--version", True), ("train --help", False), ("launch --print-job mpirun", True), ("show --json", False)],
)
def test_results_that_cannot_be_written_are_an_error_of_one_line(words: str, unbuffered: bool) -> None:
    """The commands print in different ways, and Python's own flush at its end would be another error."""
    words = words.replace("show", f"show {GRAPH}")
    assert ended(words, f">{FULL}", unbuffered=unbuffered) == (1, "", refusal("No space left on device"))


def test_a_closed_standard_output_is_as_one_that_cannot_be_written() -> None:
    assert ended(f"show {GRAPH}", ">&- <&-") == (1, "", refusal("Bad file descriptor"))


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "code"), [(f">{FULL}", 1), ("--quiet >&-", 0)])
def test_the_file_of_a_command_that_cannot_print_is_whole(tmp_path: Path, shell: str, code: int) -> None:
    path = tmp_path / "graph.h5"
    assert ended(f"convert sbm:nodes=12,blocks=2,degree=3,features=4 {path}", shell)[0] == code
    assert "nothing is damaged" in said("check", path)
    assert [each.name for each in tmp_path.iterdir()] == ["graph.h5"]


@pytest.mark.parametrize("words", [f"show {GRAPH}", "launch --print-job slurm"])
def test_a_reader_that_leaves_ends_a_command_quietly(words: str) -> None:
    assert ended(words, "| true; exit ${PIPESTATUS[0]}") == (1, "", [])


@pytest.mark.slow
def test_notes_that_nobody_can_read_do_not_end_the_work(tmp_path: Path) -> None:
    """A class without training nodes is told in a note."""
    path, source = tmp_path / "graph.h5", "sbm:nodes=40,blocks=20,degree=3,features=4"
    words = f"convert {source} {path} --split random:0.1,0.1,0.1 --force"
    assert any(line.startswith("note: ") for line in ended(words)[2])
    code, shown, _ = ended(words, f"2>{FULL}")
    assert (code, "sbm" in shown) == (0, True)


@pytest.mark.parametrize("shell", [f"2>{FULL}", ">&- 2>&- <&-"])
def test_an_error_that_nobody_can_read_has_its_exit_code(shell: str) -> None:
    assert ended("show there-is-no-such-file", shell) == (1, "", [])
    assert ended("show --no-such-option", shell) == (2, "", [])


ENDLESS = """
import threading
from hpcgnn.world import waiting
with waiting.limited(0.1, waiting.StalledError("it hangs", grace_seconds=0.1), 0, "nothing"):
    threading.Event().wait(60)
"""


@pytest.mark.parametrize("shell", [">&- 2>&-", f">{FULL} 2>{FULL}", ""])
def test_a_rank_that_waits_in_vain_ends_also_where_it_cannot_say_so(shell: str) -> None:
    """A program of a user, whose streams are Python's."""
    line = f"exec {sys.executable} -c '{ENDLESS}' {shell}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (1, "" if shell else "hpcgnn: error on rank 0: it hangs\n")
