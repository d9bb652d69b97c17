"""A job of ranks that runs one command after another (``network/under_faults.py``)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign import processes
from campaign.processes import Ended
from campaign.run import ROOT

_PROGRAM = ROOT / "tools" / "campaign" / "network" / "under_faults.py"
_LOOK_SECONDS, _START_SECONDS = 0.005, 120.0


@dataclass(frozen=True)
class Place:
    """The place of a fault: before ``rank`` waits for ``what`` for the ``count``-th time."""

    rank: int
    what: str
    count: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command. ended: the end of the whole job, if it has ended; a command that succeeds leaves it running.
    reached: whether the place of the fault was reached. seconds: from the fault, or without one from the beginning, to the end.
    After a success, waits: the waits of rank 0 and their counts; weights: a digest of the weights of each rank.
    """

    ended: Ended | None
    reached: bool
    seconds: float
    waits: dict[str, int] = dataclasses.field(default_factory=dict)
    weights: tuple[str, ...] = ()
    hangs: bool = False


class Job:
    """``ranks`` ranks that have been started.

    folder: an empty folder, through which commands are passed. line: returns the command line that starts a program on the
    ranks.
    """

    def __init__(self, line: Callable[[list[object]], list[object]], folder: Path, ranks: int) -> None:
        self.folder, self.ranks, self._number = folder, ranks, 0
        self._process: subprocess.Popen[str] = processes.start(line([sys.executable, _PROGRAM, folder]))
        deadline = time.monotonic() + _START_SECONDS
        while not all(self._pid_file(rank).exists() for rank in range(ranks)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the job does not start: {self.close().stderr[-500:]}")
            time.sleep(_LOOK_SECONDS)
        time.sleep(0.1)  # a file appears before its number is in it
        self.pids = [int(self._pid_file(rank).read_text()) for rank in range(ranks)]

    def _pid_file(self, rank: int) -> Path:
        return self.folder / f"pid.{rank}"

    def run(
        self,
        arguments: Sequence[object],
        *,
        place: Place | None = None,
        fault: Callable[[Callable[[], None]], None] | None = None,
        seconds: float,
    ) -> Outcome:
        """Run ``hpcgnn *arguments``. At ``place``, ``fault`` is called with a function that lets that rank continue.

        ``seconds`` later, the command counts as hanging.
        """
        number, self._number = self._number, self._number + 1
        told: dict[str, object] = {"arguments": [str(word) for word in arguments]}
        if place is not None:
            told["pause"] = [place.rank, place.what, place.count]
        self._write(f"{number}.json", json.dumps(told))
        started = time.monotonic()
        reached = place is not None and self._wait(
            lambda: (self.folder / f"{number}.reached").exists(), number, seconds
        )
        if reached:
            started = time.monotonic()
            assert fault is not None
            fault((self.folder / f"{number}.go").touch)
        has_ended = self._wait(lambda: False, number, seconds - (time.monotonic() - started))
        took = time.monotonic() - started
        if self._process.poll() is not None:
            return Outcome(self.close(), reached, took)
        if not has_ended and not self._is_done(number):
            return Outcome(self.close(), reached, took, hangs=True)
        told_back = [json.loads(self._told_back(number, rank).read_text()) for rank in range(self.ranks)]
        return Outcome(None, reached, took, told_back[0]["waits"], tuple(each["weights"] for each in told_back))

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f"{name}.new"
        temporary.write_text(text)
        temporary.rename(self.folder / name)

    def _told_back(self, number: int, rank: int) -> Path:
        return self.folder / f"{number}.done.{rank}"

    def _is_done(self, number: int) -> bool:
        return all(self._told_back(number, rank).exists() for rank in range(self.ranks))

    def _wait(self, condition: Callable[[], bool], number: int, seconds: float) -> bool:
        """Return whether the condition held before the command, or the job, ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if self._is_done(number) or self._process.poll() is not None:
                return condition()
            time.sleep(_LOOK_SECONDS)
        return False

    def end(self, seconds: float) -> Ended:
        """Let the ranks exit, as after a command that succeeded."""
        self._write(f"{self._number}.json", "")
        return _cleaned(processes.finish(self._process, seconds=seconds))

    def close(self) -> Ended:
        """End the job, whatever it does; return its output, and its own exit code if it had one."""
        is_over = self._process.poll() is not None
        stdout, stderr = self._process.communicate() if is_over else processes.end_group(self._process)
        return _cleaned(Ended(self._process.returncode if is_over else None, stdout, stderr, 0.0))


def _cleaned(ended: Ended) -> Ended:
    return dataclasses.replace(ended, stderr=processes.without_launcher(ended.stderr))
