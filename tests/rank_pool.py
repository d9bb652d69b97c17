"""MPI ranks that are launched once and then run one program after another, and the same interface for ranks that are threads.

Starting ranks takes seconds, most of them for imports, while a test often needs milliseconds. So a test session has one launch
for each number of ranks, and each test gives it work: a program of tests/ranks, or a command line.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
from process_tree import parents_below

from hpcgnn.launch import mpiexec
from hpcgnn.world.thread_world import on_threads

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SECONDS = 300.0
# Seconds that other ranks have to report a failure, which may be one on which all agree, or one that leaves them waiting.
_GRACE_SECONDS = 3.0


def import_path() -> str:
    """The PYTHONPATH of ranks: the package, and the tests' helpers."""
    return os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def is_open_mpi() -> bool:
    """Return whether the launcher is that of Open MPI."""
    return "--bind-to" in mpiexec.command(1)  # the flag of MPICH's launcher has one hyphen


def forget_mpi() -> None:
    """Unset the variables that MPI sets behind Python's back where it starts without a launcher. A launcher that this process
    started would take itself for a rank, and end.
    """
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = itertools.takewhile(lambda variable: variable is not None, (variables[n] for n in itertools.count()))
    for name in {variable.partition(b"=")[0] for variable in found} - os.environb.keys():
        os.unsetenv(name)


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Stop a launcher so that it ends its ranks, which it would leave behind if it were killed."""
    process.terminate()
    try:
        return process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


@dataclass(frozen=True)
class Work:
    """The work of every rank of a pool: a command line of hpcgnn, in which ``{rank}`` stands for the rank's number, or a
    program, called with its World and arguments. test: for whom they work.
    """

    command: tuple[str, ...] | None = None
    program: Callable[..., Any] | None = None
    arguments: tuple[Any, ...] = ()
    threads: int = 1
    test: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer of one rank. problem: the traceback of a program that failed, with the values of its variables."""

    value: Any = None
    problem: str = ""
    code: int = 0
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Completed:
    """The end of a command line on all ranks, in the form of a single process started by a launcher."""

    codes: list[int]
    stdout: str
    stderr: str

    @property
    def returncode(self) -> int:
        """The first exit code that is not 0, or 0."""
        return next((code for code in self.codes if code), 0)


class RankPool:
    """``size`` MPI ranks that wait for work without spinning. They are started when they are first needed, by ``python``."""

    def __init__(self, size: int, python: str = sys.executable) -> None:
        self.size = size
        self._python = python
        self._launcher: subprocess.Popen[str] | None = None
        self._ranks: list[connection.Connection] = []  # by rank
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # what the launcher and the ranks print

    def run(self, program: Callable[..., Any], *arguments: Any, seconds: float = LONGEST_SECONDS) -> list[Any]:
        """Run ``program(world, *arguments)``, a function of a module in tests/, and return its result on each rank.

        The test fails with the traceback of the lowest rank that raised, and with the values of the variables there.
        """
        answers = self._everyones(Work(program=program, arguments=arguments), program.__name__, seconds)
        return [answer.value for answer in answers]

    def command(
        self, *words: object, check: bool = True, threads: int = 1, seconds: float = LONGEST_SECONDS
    ) -> Completed:
        """Run ``hpcgnn *words`` on all ranks, as ``mpirun`` would start it; with ``check``, the test fails if the command
        fails.
        """
        line = tuple(map(str, words))
        answers = self._everyones(Work(line, threads=threads), f"hpcgnn {' '.join(line)}", seconds)
        output, problems = ("".join(getattr(answer, name) for answer in answers) for name in ("stdout", "stderr"))
        completed = Completed([answer.code for answer in answers], output, problems)
        if check and completed.returncode:
            pytest.fail(f"exit codes {completed.codes}: hpcgnn {' '.join(line)}\n{output}\n{problems}", pytrace=False)
        return completed

    def close(self, *, kill: bool = False) -> None:
        """Wait for the end of the ranks; with ``kill``, end also ranks that wait for others. The next work starts new ones."""
        self.let_go()
        if self._launcher is None:
            return
        if kill:
            stop(self._launcher)
        else:
            try:
                self._launcher.wait(timeout=30)
            except subprocess.TimeoutExpired:
                stop(self._launcher)
        self._launcher = None

    def let_go(self) -> None:
        """Tell the ranks that there is no more work, so that each of them ends."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="ranks")  # a socket's address must be short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"{folder}/socket")
                server.listen(self.size)
                server.settimeout(0.2)
                worker = [self._python, "-m", "rank_worker", f"{folder}/socket"]
                self._launcher = subprocess.Popen(
                    [*mpiexec.command(self.size, 1), *worker],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    text=True,
                    env=os.environ | {"PYTHONPATH": import_path()},
                )
                self._ranks = self._connected(server)
        finally:
            shutil.rmtree(folder)

    def _connected(self, server: socket.socket) -> list[connection.Connection]:
        """The connections to the ranks, by rank."""
        assert self._launcher is not None
        found: dict[int, connection.Connection] = {}
        deadline = time.monotonic() + LONGEST_SECONDS
        while len(found) < self.size:
            try:
                link = connection.Connection(server.accept()[0].detach())
                found[link.recv()] = link
            except TimeoutError:
                if self._launcher.poll() is not None or time.monotonic() > deadline:
                    stop(self._launcher)
                    self._launcher = None
                    pytest.fail(f"{self.size} MPI ranks did not start\n{self._said()}", pytrace=False)
        return [found[rank] for rank in range(self.size)]

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _everyones(self, work: Work, what: str, seconds: float) -> list[Answer]:
        """The answers by rank. If a rank reports a problem, or does not answer in time, the test fails and the ranks
        are ended.
        """
        if self._launcher is None:
            self._start()
        work = replace(work, test=os.environ.get("PYTEST_CURRENT_TEST", ""))
        for rank in self._ranks:
            rank.send_bytes(pickle.dumps(work))  # torch's own pickling would share memory between processes
        answers: list[Answer | None] = [None] * self.size
        waiting, deadline = dict(zip(self._ranks, range(self.size), strict=True)), time.monotonic() + seconds
        while waiting:
            ready = connection.wait(list(waiting), max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for link in ready:
                number = waiting.pop(link)
                answer = answers[number] = self._received(link, f"{what}: rank {number} of {self.size} has ended")
                if answer.problem:
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        found = [answer for answer in answers if answer is not None and not answer.problem]
        if len(found) < self.size:
            self.close(kill=None in answers)
            told = [f"rank {rank}: {problem}" for rank, problem in _told(answers)]
            pytest.fail("\n".join([f"{what} on {self.size} MPI ranks", *told]), pytrace=False)
        return found

    def _received(self, rank: connection.Connection, what_if_ended: str) -> Answer:
        with contextlib.suppress(EOFError, ConnectionError):
            return pickle.loads(rank.recv_bytes())
        said = self._said()
        self.close(kill=True)
        pytest.fail(f"{what_if_ended}\n{said}", pytrace=False)


def _told(answers: Sequence[Answer | None]) -> list[tuple[int, str]]:
    """The ranks that failed, and the texts: first reported problems, then ranks that did not answer."""
    problems = [(rank, answer.problem) for rank, answer in enumerate(answers) if answer is not None and answer.problem]
    return problems + [(rank, "did not come to an end") for rank, answer in enumerate(answers) if answer is None]


class ThreadPool:
    """The same for ranks that are threads of this process: no MPI, nothing to start, and failing assertions show their place."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, program: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run ``program(world, *arguments)`` and return its result on each rank."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # threads of each rank
        try:
            return on_threads(self.size, lambda world: program(world, *arguments))
        finally:
            torch.set_num_threads(threads)


def launched(
    ranks: int,
    args: Sequence[str | Path],
    *,
    threads: int = 1,
    bind: bool = False,
    timeout_seconds: float = LONGEST_SECONDS,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *args`` on ``ranks`` ranks of ``threads`` threads in a separate launch; with ``bind``, each rank is bound to
    its own cores.

    The test fails if the launch takes longer than ``timeout_seconds`` or, with ``check``, if it exits non-zero. ``env`` is
    added to the environment of this process, in which the tests' helpers are on the import path.
    """
    start = mpiexec.command(ranks, threads, mpiexec.Placing(bind=bind))
    command = [*start, sys.executable, *map(str, args)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": import_path()} | dict(env or {}),
        cwd=cwd,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        stdout, stderr = stop(process)
        pytest.fail(f"no end within {timeout_seconds:.0f} s: {' '.join(command)}\n{stdout}\n{stderr}", pytrace=False)
    if check and process.returncode != 0:
        pytest.fail(f"exit code {process.returncode}: {' '.join(command)}\n{stdout}\n{stderr}", pytrace=False)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def ranks_of(launcher: int) -> dict[int, int]:
    """The process ids of the ranks below a launcher, by rank. A rank is recognised by the variables that MPI sets."""
    found: dict[int, int] = {}
    parents = parents_below(launcher)
    for process in parents:
        rank = _rank_told(process)
        if rank is not None and parents[process] not in found.values():  # leaves out processes that a rank has started
            found[rank] = process
    return found


def _rank_told(process: int) -> int | None:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    told = dict(word.split("=", 1) for word in words if "=" in word)
    rank = told.get("OMPI_COMM_WORLD_RANK", told.get("PMI_RANK"))
    return int(rank) if rank is not None and "python" in command[0] else None


def signal_ranks(launcher: int, number: signal.Signals) -> int:
    """Send the signal to every rank of the launcher, and return the number of ranks."""
    sent = 0
    for process in ranks_of(launcher).values():
        try:
            os.kill(process, number)
            sent += 1
        except ProcessLookupError:
            continue
    return sent
