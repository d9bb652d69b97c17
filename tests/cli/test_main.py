"""Exit codes and the last output of the command line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import refusal
from rank_pool import ROOT, ranks_of

from hpcgnn.launch import mpiexec


def hpcgnn(*words: object, **environment: object) -> subprocess.CompletedProcess[str]:
    command, given = [sys.executable, "-m", "hpcgnn", *map(str, words)], {k: str(v) for k, v in environment.items()}
    return subprocess.run(command, env=os.environ | given, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_an_error_is_one_write(tmp_path: Path) -> None:
    """Ranks share the launcher's stderr: if a line is written in two parts, as print does with -u, another rank's line may come
    in between.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # keeps writes apart
    with ours, theirs:
        command = [sys.executable, "-u", "-m", "hpcgnn", "train", tmp_path / "missing.h5", "--out", tmp_path / "run"]
        job = subprocess.run(command, stderr=theirs.fileno(), timeout=120)
        ours.settimeout(10)
        sentence = ours.recv(10_000).decode()
    assert job.returncode == 1
    assert sentence.startswith("hpcgnn: error")
    assert sentence.endswith("\n")
    assert str(tmp_path) in sentence


ENDS = ROOT / "tests" / "ranks" / "ends.py"
SENTENCE = "hpcgnn: stopped by a signal: go on with --resume\n"


def ended(place: str, rank: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))}
    environment |= {"SLURM_PROCID": str(rank)}
    command = [sys.executable, ENDS, place]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rank", "said"),
    [
        ("in_conversion_of_ctypes", 0, SENTENCE),
        ("in_a_long_call", 0, SENTENCE),
        ("in_a_long_call", 1, ""),  # it leaves the sentence to another rank
        ("in_finaliser", 0, SENTENCE),
        ("while_cleaning_up", 0, SENTENCE),
        ("again_and_again", 0, SENTENCE),
        ("at_exit", 0, ""),  # the command has ended
    ],
)
def test_an_interruption_ends_in_a_sentence_wherever_it_arrives(place: str, rank: int, said: str) -> None:
    job = ended(place, rank)
    assert (job.returncode, job.stderr) == (130, said)
    assert job.stdout == ("cleaned up\n" if place == "while_cleaning_up" else "")


@pytest.mark.slow
def test_a_signal_to_a_fork_is_not_one_to_its_parent() -> None:
    job = ended("in_a_fork", 0)
    assert (job.returncode, job.stdout, job.stderr) == (0, "went on\n", "")


@pytest.mark.mpi
@pytest.mark.launches
def test_ranks_that_wait_end_in_one_sentence_if_the_signal_is_repeated() -> None:
    command = [*mpiexec.command(2, 1), sys.executable, ENDS, "in_wait"]
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert [job.stdout.readline() for _ in range(2)] == ["waiting\n"] * 2
        ranks = ranks_of(job.pid)
        assert set(ranks) == {0, 1}
        for _ in range(5):
            for process in ranks.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            time.sleep(0.05)
        errors = job.communicate(timeout=180)[1]
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 130
    assert errors.count(SENTENCE) == 1
    assert "Traceback" not in errors


def test_a_mistyped_command_has_a_suggestion() -> None:
    assert "No such command 'trian'. Did you mean train?" in refusal("trian")
    assert "Did you mean" not in refusal("zzz")


@pytest.mark.parametrize("arguments", [["train", "{name}.h5", "--out", "run"], ["{name}"]])
def test_names_give_no_orders_to_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a\x1b]0;title\x07\x9b2J\nhpcgnn: error: another"
    job = hpcgnn(*(each.format(name=name) for each in arguments))
    assert job.returncode in (1, 2)
    assert not {"\x1b", "\x07"} & set(job.stderr)
    assert r"a\x1b]0;title\x07\x9b2J" in job.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "mode", "code"),
    [("NUMBA_CACHE_DIR", 0o777, 1), ("TRITON_CACHE_DIR", 0o1777, 1), ("NUMBA_CACHE_DIR", 0o775, 0)],
)
def test_compiled_code_that_others_may_write_is_not_used(tmp_path: Path, variable: str, mode: int, code: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    job = hpcgnn("convert", "digits", tmp_path / "g.h5", "--quiet", **{variable: folder})
    assert job.returncode == code, job.stderr
    if code:
        assert f"{variable} is {folder}, which everybody may write" in job.stderr
        assert not any(folder.iterdir())


@pytest.mark.slow
def test_temporary_files_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for value, code in ((tmp_path / "file", 1), ("", 0)):
        job = hpcgnn("info", "--json", TMPDIR=value)  # starts MPI
        assert job.returncode == code, job.stderr
        if code:
            assert job.stderr.startswith(f"hpcgnn: error: TMPDIR is {value}, which is not a folder")
            assert job.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_name_that_no_file_can_have_is_a_sentence() -> None:
    job = hpcgnn("study", "list", "A" * 300)
    assert job.returncode in (1, 2)
    assert "Traceback" not in job.stderr
    assert "too long" in job.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "p.h5", "--out", "r", "--timeout", "nan"), "--timeout"),
        (("bench", "pyg", "g.h5", "--dropout", "nan"), "--dropout"),
        (("bench", "pyg", "g.h5", "--layers", "9" * 400), "--layers"),
        (("model", "predict", "m.toml", "p.h5", "--threads", "9" * 400), "--threads"),
        (("bench", "quantize", "--threads", "100000"), "--threads"),
        (("cluster", "heal", "node-1", "--name", "a\nb"), r"'a\\nb' is not a name"),
        (("bench", "quantize", "--width", "9" * 40), "--width"),
        (("launch", "-n", "2", "--shared-memory", "", "true"), "--shared-memory: '' is not a size"),
        (("launch", "-n", "2", "--subnet", "x", "true"), "--subnet: 'x' is not a network"),
    ],
)
def test_numbers_that_are_none_and_names_that_are_none_are_one_sentence(words, sentence):
    assert re.search(sentence, refusal(*words).splitlines()[-1])


_COLORAMA = """
def init():
    print("\\x1b[0m")

reinit = deinit = init

class _Codes:
    def __getattr__(self, name):
        return "\\x1b[0m"

Fore = Style = _Codes()
"""


@pytest.mark.slow
def test_libraries_print_no_colours(tmp_path: Path) -> None:
    (tmp_path / "colorama.py").write_text(_COLORAMA)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    job = hpcgnn("convert", "digits", tmp_path / "g.h5", PYTHONPATH=path)  # runs numba's loops
    assert job.returncode == 0, job.stderr
    assert "1,797" in job.stdout
    assert "\x1b" not in job.stdout + job.stderr


def test_a_missing_out_has_an_example() -> None:
    sentence = "Missing option '--out'. Name the run folder to create, such as --out run\n"
    assert sentence in refusal("train", "parts.h5")


def test_a_graph_in_place_of_a_run_is_called_so(tmp_path: Path) -> None:
    parts, graph = (ROOT / "tests" / "data" / f"{kind}-version-3.h5" for kind in ("parts", "graph"))
    sentence = refusal("predict", parts, graph, "--out", tmp_path / "scores.h5")
    assert sentence == f"{graph} is a graph file, but a run folder or a checkpoint is needed"
