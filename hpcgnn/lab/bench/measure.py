"""Interleaved measurement: each round measures every contender once, and the median over rounds counts."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.bench.names import HOST_NAME
from hpcgnn.lab.bench.studies import Subject

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]


@dataclass(frozen=True)
class Place:
    """The kind of process that a contender runs in.

    warm: the process keeps freed memory, and the buffer pool is off, so that all contenders get warm memory from the same
    allocator; without it, the process is as users have it. environment: further environment variables. device: torch's name of
    the device.
    """

    subject: Subject
    threads: int
    warm: bool
    huge_pages: bool = True
    environment: tuple[tuple[str, str], ...] = ()
    device: str = HOST_NAME

    def start(self, errors: IO[str]) -> subprocess.Popen[str]:
        """Start the process. errors: what it writes beside its answers."""
        options = ["--warm"] * self.warm + ["--no-huge-pages"] * (not self.huge_pages) + ["--device", self.device]
        words = [self.subject.study, *self.subject.words, *options]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(self.threads))
        pool = {"HPCGNN_BUFFER_POOL": "off"} if self.warm else {}
        return subprocess.Popen(
            [sys.executable, "-m", "hpcgnn.lab.bench.worker", *words],
            env={**os.environ, "DGLBACKEND": "pytorch", **threads, **pool, **dict(self.environment)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip


class Worker:
    """A process of :mod:`hpcgnn.lab.bench.worker`."""

    def __init__(self, place: Place) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = place.start(self._said)

    def ask(self, **request: str) -> dict[str, Any]:
        """The answer of the process to a request. Raises :class:`HpcgnnError` if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            if code == -signal.SIGKILL and request["do"] == "prepare":  # the system kills it when memory runs out
                return {"missing": "ran out of memory"}
            self._said.seek(0)
            said = self._said.read().strip().splitlines()[-1:]
            raise HpcgnnError(f"the process that measures {request['contender']} ended with code {code}: {said}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._said.close()


@dataclass
class Timing:
    """The times of one contender. rounds: seconds of each round, the median of the round's calls. multiply_adds: number of
    multiply-adds of a call, if known. relative_error: error of the result, if measured."""

    rounds: list[float] = field(default_factory=list)
    multiply_adds: float | None = None
    relative_error: float | None = None

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Largest minus smallest round, relative to the median."""
        return (max(self.rounds) - min(self.rounds)) / self.seconds

    def as_json(self) -> dict[str, Any]:
        """The timing for ``--json``."""
        known = {"multiply_adds": self.multiply_adds, "relative_error": self.relative_error}
        known = {name: value for name, value in known.items() if value is not None}
        return {"seconds": self.seconds, "spread": self.spread, "rounds": self.rounds, **known}


@dataclass(frozen=True)
class Entry:
    """One contender to measure. key: its key in the results. place: its process; entries with equal places share a process unless
    ``alone`` is set."""

    key: str
    contender: str
    place: Place
    alone: bool = False


@dataclass
class Outcome:
    """Timings by key, and the reasons why others are missing."""

    timings: dict[str, Timing] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The outcome for ``--json``."""
        return {key: timing.as_json() for key, timing in self.timings.items()} | {
            key: {"missing": reason} for key, reason in self.missing.items()
        }


def measured(
    title: str, entries: list[Entry], rounds: int, progress: Progress, directions: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """The timings of ``entries`` for ``--json``, by direction: see :func:`interleave`."""
    number = len(directions or entries[0].place.subject.of_study.directions)
    with progress(title, number * len(entries) * (rounds + 1)) as advance:
        outcomes = interleave(entries, rounds, advance, directions)
    return {direction: outcome.as_json() for direction, outcome in outcomes.items()}


def interleave(
    entries: list[Entry], rounds: int, advance: Advance, directions: tuple[str, ...] = ()
) -> dict[str, Outcome]:
    """Time ``entries`` in each of ``directions``, by default all of their study, such as forward and backward.

    A contender is missing if it fails, or if its results differ from those of the first one with the same subject.
    """
    directions = directions or entries[0].place.subject.of_study.directions
    with _workers(entries) as workers:
        return {direction: _interleave(entries, workers, direction, rounds, advance) for direction in directions}


def _interleave(
    entries: list[Entry], workers: dict[str, Worker], direction: str, rounds: int, advance: Advance
) -> Outcome:
    outcome = _prepare(entries, workers, direction, advance)
    ready = [entry for entry in entries if entry.key in outcome.timings]
    advance(len(outcome.missing) * rounds)
    for turn in range(rounds):
        first = turn % max(len(ready), 1)  # so that no contender always follows the same one
        for entry in ready[first:] + ready[:first]:
            if entry.key not in outcome.missing:
                answer = workers[entry.key].ask(do="run", contender=entry.contender, direction=direction)
                if "missing" in answer:
                    outcome.missing[entry.key] = f"failed while it was measured: {answer['missing']}"
                    del outcome.timings[entry.key]
                else:
                    outcome.timings[entry.key].rounds.append(statistics.median(answer["seconds"]))
            advance(1)
    return outcome


def _prepare(entries: list[Entry], workers: dict[str, Worker], direction: str, advance: Advance) -> Outcome:
    """Prepare all entries and compare their results; return timings without rounds, and the reasons of missing entries."""
    outcome = Outcome()
    expected: dict[Subject, list[float]] = {}
    for entry in entries:
        contender = entry.place.subject.contender(entry.contender, entry.place.device)
        answer: dict[str, Any] = {"missing": f"has no {direction} of its own"}
        if direction in contender.directions:
            answer = workers[entry.key].ask(do="prepare", contender=entry.contender, direction=direction)
        try:
            found = answer.get("fingerprint")
            if found is not None:
                compare(entry, contender.tolerance or 0, found, expected.setdefault(entry.place.subject, found))
        except HpcgnnError as error:
            answer = {"missing": str(error)}
        if "missing" in answer:
            outcome.missing[entry.key] = answer["missing"]
        else:
            outcome.timings[entry.key] = Timing([], answer.get("multiply_adds"), answer.get("relative_error"))
        advance(1)
    return outcome


@contextmanager
def _workers(entries: list[Entry]) -> Iterator[dict[str, Worker]]:
    """The process of each entry, by key."""
    with ExitStack() as stack:
        by_key: dict[str, Worker] = {}
        shared: dict[Place, Worker] = {}
        for entry in entries:
            worker = None if entry.alone else shared.get(entry.place)
            if worker is None:
                worker = Worker(entry.place)
                stack.callback(worker.close)
            by_key[entry.key] = worker
            if not entry.alone:
                shared[entry.place] = worker
        yield by_key


def compare(entry: Entry, tolerance: float, found: list[float], expected: list[float]) -> None:
    """Raise HpcgnnError unless two fingerprints belong to the same results, within ``tolerance``."""
    for value, wanted, size in zip(found[::2], expected[::2], expected[1::2], strict=True):
        if not abs(value - wanted) <= tolerance * size * 3:  # a NaN also counts as different
            raise HpcgnnError(f"{entry.contender} and hpcgnn compute different results: {value:.6g} and {wanted:.6g}")
