"""Interleaved measurement: each round measures every contender once, and the median over rounds counts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.bench.names import HOST_NAME, Advance, How
from hpcgnn.lab.bench.studies import Subject


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


class Worker:
    """A process of :mod:`hpcgnn.lab.bench.worker`."""

    def __init__(self, place: Place) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(place.threads))
        pool = {"HPCGNN_BUFFER_POOL": "off"} if place.warm else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hpcgnn.lab.bench.worker", json.dumps(asdict(place))],
            env={**os.environ, "DGLBACKEND": "pytorch", **threads, **pool, **dict(place.environment)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip

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
    multiply-adds of a call, if known. relative_error: error of the result, if measured. missing: the reason why it was not
    measured."""

    rounds: list[float] = field(default_factory=list)
    multiply_adds: float | None = None
    relative_error: float | None = None
    missing: str = ""

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
        if self.missing:
            return {"missing": self.missing}
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


def measured(
    title: str, entries: list[Entry], how: How, directions: tuple[str, ...] = ()
) -> dict[str, dict[str, dict[str, Any]]]:
    """Time ``entries`` in each of ``directions``, by default all of their study, such as forward and backward. Returns the
    timings for ``--json`` by direction and key; those that are missing come last.

    A contender is missing if it fails, or if its results differ from those of the first one with the same subject.
    """
    directions = directions or entries[0].place.subject.of_study.directions
    found = {}
    with (
        how.progress(title, len(directions) * len(entries) * (how.rounds + 1)) as advance,
        _workers(entries) as workers,
    ):
        for direction in directions:
            timings = _interleave(entries, workers, direction, how.rounds, advance)
            in_order = sorted(timings.items(), key=lambda item: bool(item[1].missing))
            found[direction] = {key: timing.as_json() for key, timing in in_order}
    return found


def _interleave(
    entries: list[Entry], workers: dict[str, Worker], direction: str, rounds: int, advance: Advance
) -> dict[str, Timing]:
    timings = _prepare(entries, workers, direction, advance)
    ready = [entry for entry in entries if not timings[entry.key].missing]
    advance((len(entries) - len(ready)) * rounds)
    for turn in range(rounds):
        first = turn % max(len(ready), 1)  # so that no contender always follows the same one
        for entry in ready[first:] + ready[:first]:
            timing = timings[entry.key]
            if not timing.missing:
                answer = workers[entry.key].ask(do="run", contender=entry.contender, direction=direction)
                if "missing" in answer:
                    timing.missing = f"failed while it was measured: {answer['missing']}"
                else:
                    timing.rounds.append(statistics.median(answer["seconds"]))
            advance(1)
    return timings


def _prepare(entries: list[Entry], workers: dict[str, Worker], direction: str, advance: Advance) -> dict[str, Timing]:
    """Prepare all entries and compare their results. Returns timings without rounds."""
    timings = {}
    expected: dict[Subject, list[float]] = {}
    for entry in entries:
        subject = entry.place.subject
        contender = subject.of_study.contenders(entry.place.device)[entry.contender]
        answer: dict[str, Any] = {"missing": f"has no {direction} of its own"}
        if direction in contender.directions:
            answer = workers[entry.key].ask(do="prepare", contender=entry.contender, direction=direction)
        found = answer.pop("fingerprint", None)
        if found is not None:
            wanted = expected.setdefault(subject, found)
            answer["missing"] = difference(entry, contender.tolerance or 0, found, wanted)
        timings[entry.key] = Timing(**answer)
        advance(1)
    return timings


@contextlib.contextmanager
def _workers(entries: list[Entry]) -> Iterator[dict[str, Worker]]:
    """The process of each entry, by key."""
    with contextlib.ExitStack() as stack:
        started: dict[tuple[Place, str], Worker] = {}
        by_key = {}
        for entry in entries:
            process = entry.place, entry.key if entry.alone else ""
            if process not in started:
                started[process] = stack.enter_context(contextlib.closing(Worker(entry.place)))
            by_key[entry.key] = started[process]
        yield by_key


def difference(entry: Entry, tolerance: float, found: list[float], expected: list[float]) -> str:
    """A sentence if two fingerprints do not belong to the same results, within ``tolerance``; else an empty text."""
    for value, wanted, size in zip(found[::2], expected[::2], expected[1::2], strict=True):
        if not abs(value - wanted) <= tolerance * size * 3:  # a NaN also counts as different
            return f"{entry.contender} and hpcgnn compute different results: {value:.6g} and {wanted:.6g}"
    return ""
