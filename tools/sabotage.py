"""Put small faults into a copy of the source, one at a time, and check that the test named for each of them fails.

``make sabotage`` runs it over all lists, ``tools/faults/*.toml``. An entry of a list is a fault::

    [[fault]]
    about = "The rows of two peers are swapped."
    file = "hpcgnn/exchange/exchange.py"
    old = "..."                  # occurs exactly once in the file
    new = "..."
    test = "tests/exchange/test_exchange.py::test_rows_arrive"
    isa = "avx2"                 # for files in native/: the one instruction set that is compiled; default "scalar"

First all named tests run without a fault, and must pass. Then each fault is put into the copy, and its test must fail: a test
that is skipped, cannot be collected or does not end within ``--seconds`` does not count. Tests run in processes forked from one
that has imported the large libraries, in copies of the tree of their own, so nothing in the checkout changes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as tests/conftest.py does, before torch is imported

import click
import pytest
import rich
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tools" / "faults"
WORK = Path(os.environ.get("SABOTAGE_WORK", ROOT / "build" / "sabotage"))
LIBRARY = Path("hpcgnn/kernels/_native.so")
PASSED, CAUGHT, NOT_RUN, HANGS = "passed", "caught", "did not run", "did not end"


@dataclass(frozen=True)
class Fault:
    """One entry of a list."""

    about: str
    file: str
    old: str
    new: str
    test: str
    isa: str = ""

    def wrong(self) -> str:
        """Return why the entry cannot be used, or an empty string."""
        path = ROOT / self.file
        if not path.is_file():
            return f"there is no file {self.file}"
        found = path.read_text().count(self.old)
        if found != 1:
            return f"its text occurs {found} times in {self.file}, not once"
        if self.old == self.new:
            return "it changes nothing"
        module, _, name = self.test.partition("::")
        name = name.rpartition("::")[2]  # it may be in a class
        known = (ROOT / module).is_file() and f"def {name.partition('[')[0]}(" in (ROOT / module).read_text()
        return "" if known else f"there is no test {self.test}"

    @property
    def instruction_set(self) -> str:
        """The only instruction set that the copy's native library has; empty for the library of the checkout."""
        return (self.isa or "scalar") if self.file.startswith("native/") else ""


@dataclass
class Job:
    """Tests to run in a copy of the tree, with a fault in it or none."""

    tests: tuple[str, ...]
    isa: str = ""
    fault: Fault | None = None
    end: str = ""
    seconds: float = 0.0
    log: Path = field(default_factory=Path)


def faults(lists: Sequence[Path]) -> list[Fault]:
    """Read the lists; raise click.UsageError that names every entry that cannot be used."""
    found = [Fault(**entry) for path in lists for entry in tomllib.loads(path.read_text())["fault"]]
    wrong = [f"{fault.about} {problem}" for fault in found if (problem := fault.wrong())]
    if wrong:
        raise click.UsageError("Entries that do not fit the source:\n" + "\n".join(wrong))
    return found


def copy_tree(tree: Path) -> None:
    """Copy all files that git knows or does not ignore, and the native library, with their times."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard"],  # noqa: S607 - found by PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in [*filter(None, listed.split("\0")), str(LIBRARY)]:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


class Verdict:
    """A plugin of pytest that keeps how the tests ended."""

    def __init__(self) -> None:
        self.ran, self.failed, self.skipped = 0, 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the test once it ran; a fixture that fails counts as a failure of its test."""
        self.ran += report.when == "call" and not report.skipped
        self.failed += report.failed
        self.skipped += report.skipped

    def code(self, *, all_pass: bool) -> int:
        """0: all passed; 1: one failed; 2: none ran, or one was left out of tests that must all pass."""
        if self.failed:
            return 1
        return 0 if self.ran and not (all_pass and self.skipped) else 2


def _run_here(job: Job, tree: Path, numba_cache: Path) -> int:
    """Run a job's tests in this process, which was forked for it; return the code of the verdict."""
    os.setpgid(0, 0)  # so that ranks end with it
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(numba_cache),
        "HPCGNN_DATA": os.environ.get("HPCGNN_DATA", str(ROOT.parent / "shared" / "data")),
    }
    if job.isa:
        os.environ["HPCGNN_ISA"] = job.isa
        command = [sys.executable, "native/build.py", "--output", LIBRARY, "--isas", job.isa, "--flags=-O1"]
        subprocess.run(command, check=True)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(tree), str(tree / "tests")]
    verdict = Verdict()
    words = ["-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(tree), *job.tests]
    if pytest.main(words, plugins=[verdict]) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return 2
    return verdict.code(all_pass=job.fault is None)


@functools.cache
def _digest_of_compiled() -> str:
    """A digest of all files that numba compiles."""
    texts = (path.read_bytes() for path in sorted((ROOT / "hpcgnn").rglob("*.py")))
    return hashlib.sha256(b"".join(text for text in texts if b"numba" in text)).hexdigest()[:12]


def _fork(job: Job, tree: Path, slot: int) -> int:
    """Put the job's fault into the tree, start its tests, and return the process."""
    numba_cache = WORK / f"numba-{slot}-{_digest_of_compiled()}"
    if job.fault:
        path = tree / job.fault.file
        text = path.read_text()
        if (
            path.suffix == ".py" and "numba" in text
        ):  # it does not notice that a function called by a cached one has changed
            numba_cache = tree / "numba"
            shutil.rmtree(numba_cache, ignore_errors=True)
        path.write_text(text.replace(job.fault.old, job.fault.new))
    process = os.fork()
    if process == 0:
        code = 2
        try:
            code = _run_here(job, tree, numba_cache)
        except BaseException as error:  # the fork must not go on as its parent
            print(repr(error), flush=True)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return process


def _restore(job: Job, tree: Path) -> None:
    if job.fault:
        shutil.copy2(ROOT / job.fault.file, tree / job.fault.file)
    if job.isa:
        shutil.copy2(ROOT / LIBRARY, tree / LIBRARY)


def run(jobs: Sequence[Job], trees: Sequence[Path], seconds: float) -> Iterator[Job]:
    """Run jobs, one at a time in each tree, and yield each when it has ended."""
    waiting, free, running = list(reversed(jobs)), list(range(len(trees))), {}
    while waiting or running:
        while waiting and free:
            job, slot = waiting.pop(), free.pop()
            job.log = WORK / f"log-{len(waiting)}.txt"
            running[_fork(job, trees[slot], slot)] = (job, slot, time.monotonic())
        for process, (job, slot, start) in list(running.items()):
            job.seconds = time.monotonic() - start
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and job.seconds < seconds:
                continue
            with contextlib.suppress(ProcessLookupError):  # it, or what it has left running
                os.killpg(process, signal.SIGKILL)
            if not ended:
                os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status) if ended else None
            # A fault may end the process by a signal, for instance by a write out of bounds.
            job.end = HANGS if code is None else CAUGHT if code == 1 or code < 0 else PASSED if code == 0 else NOT_RUN
            del running[process]
            free.append(slot)
            _restore(job, trees[slot])
            yield job
        time.sleep(0.02)


def unchanged(entries: Sequence[Fault], parts: int) -> list[Job]:
    """Return jobs that run every named test without a fault, in ``parts`` parts; tests of native/ with the library they get."""
    tests: dict[str, list[str]] = {}
    for fault in entries:
        tests.setdefault(fault.instruction_set, []).append(fault.test)
    jobs = []
    for isa, names in tests.items():
        distinct = sorted(set(names))
        size = -(-len(distinct) // (1 if isa else parts))
        jobs += [Job(tuple(distinct[start : start + size]), isa) for start in range(0, len(distinct), size)]
    return jobs


def _shown(jobs: Sequence[Job], trees: Sequence[Path], seconds: float, title: str) -> list[Job]:
    done = []
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=len(jobs))
        for job in run(jobs, trees, seconds):
            done.append(job)
            progress.advance(task)
    return done


@click.command()
@click.argument("lists", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", default="", help="Only faults whose file, sentence or test contains this text.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Tests that run at a time.")
@click.option("--seconds", default=180.0, show_default=True, help="The longest time of a fault's test.")
def main(lists: tuple[Path, ...], only: str, jobs: int, seconds: float) -> None:
    """Check that the tests catch every fault of LISTS (default: tools/faults/*.toml).

    Example: python tools/sabotage.py tools/faults/plan.toml --only cover
    """
    start = time.monotonic()
    entries = [
        fault
        for fault in faults(lists or sorted(LISTS.glob("*.toml")))
        if only in f"{fault.file}\n{fault.about}\n{fault.test}"
    ]
    trees = [WORK / f"tree-{slot}" for slot in range(jobs)]
    for tree in trees:
        copy_tree(tree)
    for name in ("torch", "numba", "h5py", "scipy.sparse", "scipy.optimize", "sklearn.metrics"):
        importlib.import_module(name)  # for all processes that are forked from this one

    before = _shown(unchanged(entries, jobs), trees, 60 * seconds, "tests without a fault")
    for job in before:
        if job.end != PASSED:
            rich.print(f"[red]The tests do not pass without a fault ({job.end})[/]")
            print(*job.log.read_text().splitlines()[-30:], sep="\n")
    if any(job.end != PASSED for job in before):
        raise SystemExit(1)
    middle = time.monotonic()
    done = _shown([Job((e.test,), e.instruction_set, e) for e in entries], trees, seconds, "faults")
    _report(done, middle - start, time.monotonic() - middle)
    raise SystemExit(any(job.end != CAUGHT for job in done))


def _report(done: Sequence[Job], seconds_before: float, seconds: float) -> None:
    table = Table("folder", "faults", "caught", "longest (s)")
    folders = ["/".join(job.fault.file.split("/")[:2]) for job in done if job.fault]
    for folder in sorted({*folders}):
        own = [job for job, place in zip(done, folders, strict=True) if place == folder]
        caught = sum(job.end == CAUGHT for job in own)
        table.add_row(folder, str(len(own)), str(caught), f"{max(job.seconds for job in own):.1f}")
    rich.print(table)
    for job in done:
        if job.end != CAUGHT and job.fault:
            print(f"not caught ({job.end}): {job.fault.file}: {job.fault.about}\n    {job.fault.test}")
    caught = sum(job.end == CAUGHT for job in done)
    rich.print(
        f"{caught} of {len(done)} faults caught; {seconds_before:.0f} s without faults, {seconds:.0f} s with them"
    )


if __name__ == "__main__":
    main()
