"""Runs of tests with a change of the source, each in a process of its own, which is forked from one that has imported the large
libraries. Processes that tests start have the change, too (:mod:`mutation.change`)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutation import change

ROOT = change.ROOT
WORK = ROOT / "build" / "mutation"
PASSED, CAUGHT, NOT_RUN, HANGS, MISSING = "passed", "caught", "did not run", "did not end", "tests are missing"
QUICK = "not (launches or slurm or virtual_cluster or builds or emulator or slow or gpu)"
MARKS = "not (slurm or virtual_cluster or builds or emulator or gpu)"
LONG = f"(launches or slow) and {MARKS}"
_FAILED = "failed: "


@dataclass
class Run:
    """Tests, and how they ended. name: of the change, empty for none. marks: an expression of markers. limit: the most seconds.
    log: the output. failed: the test that failed."""

    name: str
    tests: tuple[str, ...]
    marks: str
    limit: float
    end: str = ""
    seconds: float = 0.0
    log: Path = WORK
    failed: str = ""


class _Counts:
    """A plugin of pytest that counts tests by their end."""

    def __init__(self) -> None:
        self.ran, self.failed = 0, ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once; a fixture that fails counts as a failure of its test."""
        self.ran += report.when == "call" and not report.skipped
        if report.failed:
            self.failed = self.failed or report.nodeid


def _run_here(run: Run) -> int:
    """Run the tests in this process, which was forked for them. Returns 0: none failed; 1: one did; 2: none could run; 3: some do
    not exist."""
    os.setpgid(0, 0)  # so that ranks end with it
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = change.import_path()
    os.environ.setdefault("HPCGNN_DATA", str(ROOT.parent / "shared" / "data"))
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if run.name:
        change.install(run.name)
        if "numba" in change.source_of(run.name).read_text():  # whose cache would not notice the change
            os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="numba-", dir=WORK)
    counts = _Counts()
    words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    code = pytest.main([*words, "-m", run.marks, *run.tests], plugins=[counts])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:  # none has these marks
        return 0
    print(f"\n{_FAILED}{counts.failed}")
    if code == pytest.ExitCode.USAGE_ERROR:
        return 3
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return 2
    return 1 if counts.failed else 0 if counts.ran else 2


def _fork(run: Run) -> int:
    process = os.fork()
    if process == 0:
        code = 2
        try:
            code = _run_here(run)
        except BaseException as error:  # the fork must not go on as its parent
            print(repr(error), flush=True)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return process


def ended(runs: Sequence[Run], jobs: int) -> Iterator[Run]:
    """Run all, ``jobs`` at a time, and yield each when it has ended."""
    WORK.mkdir(parents=True, exist_ok=True)
    waiting, running = list(reversed(runs)), dict[int, tuple[Run, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            run = waiting.pop()
            run.log = WORK / f"log-{os.getpid()}-{len(waiting)}.txt"
            running[_fork(run)] = run, time.monotonic()
        for process, (run, start) in list(running.items()):
            run.seconds = time.monotonic() - start
            is_over, status = os.waitpid(process, os.WNOHANG)
            if not is_over and run.seconds < run.limit:
                continue
            with contextlib.suppress(ProcessLookupError):  # it, or what it has left running
                os.killpg(process, signal.SIGKILL)
            if not is_over:
                os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status) if is_over else None
            # A change may end the process by a signal, for instance by a write out of bounds.
            ends = {None: HANGS, 0: PASSED, 1: CAUGHT, 3: MISSING}
            run.end = CAUGHT if code is not None and code < 0 else ends.get(code, NOT_RUN)
            failed = [line for line in run.log.read_text().splitlines() if line.startswith(_FAILED)]
            run.failed = failed[-1].removeprefix(_FAILED) if failed else ""
            del running[process]
            yield run
        time.sleep(0.02)
