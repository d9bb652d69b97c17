"""A process that has imported everything, and forks one child for each mutation: a reader starts in milliseconds, not seconds.

The parent never enters MPI or a parallel region of OpenMP, whose state would not survive in its children. Each child has its
own folder, session and deadline.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from campaign.children import redirect
from campaign.mutations.case import Case
from campaign.mutations.forked_ranks import end_mpi, leave, on_ranks
from campaign.mutations.mutation import Mutation
from campaign.mutations.places import copy
from campaign.mutations.readers import RESULTS

# Memory that a reader may take beside its initial memory: enough to be noticed, but not enough to affect the machine.
_ADDRESSES = 4 << 30
CODE_RAN = "code-ran"
"""The file that code in a damaged file creates if it runs."""
_HARNESS = 99  # exit code of a child that could not run its task
_POLL_SECONDS = 0.002


@dataclass
class Outcome:
    """The outcome of a task.

    exit: the exit code, or minus the signal; None if the deadline passed. digest: of the result. resident_bytes: largest
    resident memory above that at the start. address_bytes: the same for address space, which includes memory that is never
    touched. ranks: the exit of each rank, if the reader runs under mpirun; memory is then the largest of all ranks.
    left_behind: temporary files, and results from a refused file. code_ran: whether code that a mutator put into a file has run
    (:data:`CODE_RAN`).
    """

    exit: int | None
    stderr: str
    mutation: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    resident_bytes: int = 0
    address_bytes: int = 0
    file_bytes: int = 0
    ranks: list[int] = field(default_factory=list)
    seconds: float = 0.0
    left_behind: list[str] = field(default_factory=list)
    code_ran: bool = False


@dataclass(frozen=True)
class Task:
    """One reader in one folder. damage: a function that damages the files of the case there; None for undamaged files."""

    case: Case
    name: str
    damage: Callable[[Path], Mutation] | None
    of_group: str = ""

    @property
    def group(self) -> str:
        """The row of the task in the report."""
        return self.of_group or f"{self.case.kind}, damaged by chance"


class ForkServer:
    """inputs: the folder from which files of cases are copied. scratch: a folder for the children's folders. jobs: number of
    children at a time. keep: a folder that gets a copy of each child's folder at its end.
    """

    def __init__(
        self, inputs: Path, scratch: Path, *, jobs: int, deadline_seconds: float, keep: Path | None = None
    ) -> None:
        self.inputs, self.scratch, self.jobs, self.deadline_seconds = inputs, scratch, jobs, deadline_seconds
        self.keep = keep
        self._started = 0
        self._running: dict[int, tuple[Task, Path, float]] = {}

    def run_all(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Outcome]]:
        """The outcome of each task, in the order in which they end."""
        more = True
        while more or self._running:
            while more and len(self._running) < self.jobs:
                task = next(tasks, None)
                if task is None:
                    more = False
                else:
                    self._start(task)
            yield from self._ended()
            time.sleep(_POLL_SECONDS)

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` in a child, because it enters MPI. Raises ``RuntimeError`` if the child fails."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _in_child(function)
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError(f"the valid files could not be made: {code}")

    def _start(self, task: Task) -> None:
        self._started += 1
        folder = self.scratch / f"{self._started}"
        folder.mkdir()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _in_child(lambda: _read(task, self.inputs, folder))
        self._running[pid] = (task, folder, time.monotonic())

    def _ended(self) -> Iterator[tuple[Task, Outcome]]:
        for pid, (task, folder, started) in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            seconds = time.monotonic() - started
            code: int | None
            if ended:
                code = os.waitstatus_to_exitcode(status)
            elif seconds > self.deadline_seconds:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                code = None
            else:
                continue
            del self._running[pid]
            yield task, _outcome(folder, code, seconds)
            if self.keep is not None and task.damage is not None:
                shutil.copytree(folder, self.keep / folder.name, symlinks=True, ignore=_not_plain, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def _not_plain(folder: str, names: list[str]) -> list[str]:
    """The names of special files such as pipes, from which a copy would not end."""
    return [
        name for name in names if not ((path := Path(folder, name)).is_symlink() or path.is_dir() or path.is_file())
    ]


def _outcome(folder: Path, code: int | None, seconds: float) -> Outcome:
    told = _json(folder / "outcome.json")
    stderr = (folder / "stderr").read_text(errors="replace") if (folder / "stderr").exists() else ""
    left = [str(path.relative_to(folder)) for path in folder.rglob("*.tmp")]
    left += [name for name in RESULTS if code and (folder / name).exists()]
    ran = any(folder.rglob(CODE_RAN))
    outcome = Outcome(code, stderr, _json(folder / "mutation.json"), seconds=seconds, left_behind=left, code_ran=ran)
    for name, value in told.items():
        setattr(outcome, name, value)
    return outcome


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _in_child(function: Callable[[], object]) -> None:
    """Run ``function`` and exit, without the parent's cleanup."""
    os.setsid()
    code = _HARNESS
    try:
        result = function()
        code = result if isinstance(result, int) else 0
        end_mpi()
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def prepare(task: Task, inputs: Path, folder: Path) -> None:
    """Copy the files of a case to ``folder``, and damage one of them."""
    for source, name in task.case.copies:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(inputs / source, folder / name)
    if task.damage is not None:
        mutation = task.damage(folder)
        (folder / "mutation.json").write_text(json.dumps(asdict(mutation)))


def _read(task: Task, inputs: Path, folder: Path) -> int:
    prepare(task, inputs, folder)
    os.chdir(folder)
    redirect("stdout", "stderr")
    target = Path(task.case.target)
    size = target.stat().st_size if target.is_file() else 0
    _limit()
    outcome: dict[str, Any] = {"file_bytes": size}
    if task.case.reader.ranks:
        codes = on_ranks(len(task.case.reader.ranks), task.case.reader.run, list(task.case.reader.ranks), _write_memory)
        outcome |= {"ranks": codes} | _largest([_json(Path(f"memory.{rank}")) for rank in range(len(codes))])
        code = next((code for code in codes if code != 0), 0)
    else:
        before = _memory()
        code = task.case.reader.run()
        outcome |= _grown(before)
    sys.stdout.flush()
    if code == 0:
        outcome["digest"] = task.case.reader.result()
    Path("outcome.json").write_text(json.dumps(outcome))
    return code if code >= 0 else 128 - code


def _limit() -> None:
    """Limit the memory of a reader, and forbid core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (_memory()["VmSize"] + _ADDRESSES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write_memory(rank: int) -> None:
    # The memory since the fork: a child begins with the pages of its parent, and with its largest size.
    now = _memory()
    Path(f"memory.{rank}").write_text(json.dumps({"resident_bytes": now["VmHWM"], "address_bytes": now["VmPeak"]}))


def _largest(ranks: list[dict[str, int]]) -> dict[str, int]:
    return {name: max(rank.get(name, 0) for rank in ranks) for name in ("resident_bytes", "address_bytes")}


def _grown(before: dict[str, int]) -> dict[str, int]:
    now = _memory()
    return {
        "resident_bytes": now["VmHWM"] - before["VmRSS"],
        "address_bytes": now["VmPeak"] - before["VmSize"],
    }


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Vm")}
