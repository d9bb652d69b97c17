"""The runner of a study: it runs the configurations that have not finished on this machine, in rounds, and records each run
before and after it."""

from __future__ import annotations

import random
import shutil
import time
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import jobs, prepare, records
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.jobs import Job
from hpcgnn.lab.study.prepare import Parts
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import Run, Specification
from hpcgnn.lab.virtual import cluster as virtual_cluster
from hpcgnn.launch import mpiexec

RUNS = "runs"
_NOT_OF_RUNS = ("report", "about")  # tables that may change in the specification of a study that has begun
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Listener:
    """Receives the progress. note: takes one sentence. advance: takes the number of runs that are done."""

    note: Callable[[str], None] = lambda sentence: None
    advance: Callable[[int], None] = lambda count: None


@dataclass(frozen=True)
class Outcome:
    """Numbers of runs that this runner has done, that have failed, and that were left to another runner."""

    finished: int
    failed: int
    elsewhere: int


def claim(specification: Specification, folder: Path) -> None:
    """Make the folder of a study, with its specification in it.

    Raises:
        HpcgnnError: if the folder belongs to another study, holds other files, or cannot be made.
    """
    path = folder / records.SPECIFICATION
    if path.exists():
        before = tomllib.loads(typed.text_of(path))
        if _of_runs(before) != _of_runs(tomllib.loads(specification.text)):
            raise HpcgnnError(
                f"{folder} holds a study of another specification ({path}): choose another --out, or remove the folder"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise HpcgnnError(f"{folder} is not empty and does not hold a study: choose another --out")
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcgnnError(f"cannot make {folder}: {error.strerror}") from error
    with whole_file.replacing(path) as temporary:
        temporary.write_text(specification.text)


def _of_runs(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _NOT_OF_RUNS}


def order(runs: Iterable[Run]) -> list[Run]:
    """The runs in rounds; a round is all configurations with one repeat and seed. Each round begins at another configuration,
    drawn at random for the round."""
    rounds: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        rounds.setdefault(run.round, []).append(run)
    found: list[Run] = []
    for number, each in enumerate(rounds.values()):
        first = random.Random(number).randrange(len(each)) if number else 0  # noqa: S311 - an order, the same for a study wherever it runs
        found += each[first:] + each[:first]
    return found


def missing(specification: Specification, folder: Path) -> list[Run]:
    """The runs that have not finished on this machine, in the order in which to run them."""
    done = records.finished_keys(folder, records.machine_facts()["id"])
    return [run for run in order(specification.runs) if run.key not in done]


def run_all(
    specification: Specification,
    folder: Path,
    how: Commands,
    listener: Listener,
    only: Collection[str] = (),
) -> Outcome:
    """Run all runs that are missing; a run that fails is recorded, and the others go on.

    only: keys of the runs to do; empty for all.

    Raises:
        HpcgnnError: if no run can start, and for an unknown key.
    """
    unknown = sorted(set(only) - {run.key for run in specification.runs})
    if unknown:
        raise HpcgnnError(
            f"{specification.path} has no run {unknown[0]}: `hpcgnn study list {specification.path}` shows its keys"
        )
    wanted = [run for run in missing(specification, folder) if not only or run.key in only]
    if not how.launcher:
        _check_hosts(wanted)
    prepare.check_parts(filter(jobs.needs_parts, wanted))
    runner = _Runner(folder, how, listener, prepare.parts_of(folder, filter(jobs.needs_parts, specification.runs)))
    outcomes = [runner.run(run) for run in wanted]
    return Outcome(*(outcomes.count(what) for what in (records.FINISHED, records.FAILED, records.STARTED)))


def _check_hosts(runs: Iterable[Run]) -> None:
    """Raise HpcgnnError if runs need virtual hosts and these cannot be made: once before the first run, not in each run."""
    if any(run.place.hosts for run in runs):
        virtual_cluster.check_rights()
        mpiexec.command(1, 1, mpiexec.Placing(virtual=True))


class _Runner:
    """Executes runs in one folder. A graph or a partition that cannot be made is tried only once."""

    def __init__(self, folder: Path, how: Commands, listener: Listener, parts: dict[str, Parts]) -> None:
        self._folder, self._how, self._listener, self._parts = folder, how, listener, parts
        self._machine = records.machine_facts()
        self._obstacles: dict[Path, str] = {}

    def run(self, run: Run) -> str:
        """Do one run from its start, and return its status; ``started`` if another runner does it."""
        what = f"{run.key} is run by another process: left to it"
        lock = self._folder / RUNS / f".{run.key}.lock"
        with prepare.locked(lock, or_else=lambda: self._listener.note(what)) as mine:
            # Another runner may have finished it since this one made its list of missing runs.
            mine = mine and run.key not in records.finished_keys(self._folder, self._machine["id"])
            if mine:
                record = self._tried(run)
                if record.status == records.FAILED:
                    self._listener.note(f"{run.key} failed: {record.error}")
        self._listener.advance(1)
        return record.status if mine else records.STARTED

    def _tried(self, run: Run) -> Record:
        parts, place = self._parts.get(run.key), self._folder / RUNS / run.key
        record = Record(
            key=run.key,
            configuration=run.configuration,
            status=records.STARTED,
            machine=self._machine,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            parts=str(parts.path.relative_to(self._folder)) if parts else "",
            run=str(place.relative_to(self._folder)),
        )
        if parts and (said := self._prepared(run, parts)):
            record = replace(record, status=records.FAILED, error=said)
            records.append(self._folder, record)
            return record
        records.append(self._folder, record)
        shutil.rmtree(place, ignore_errors=True)  # a failed attempt may have left files
        place.mkdir(parents=True)
        started = time.perf_counter()
        found = jobs.done(Job(run, parts, place, self._how))
        record = replace(record, wall_seconds=time.perf_counter() - started, **found)
        if parts:
            record = replace(record, preparation=prepare.preparation(parts))
        if record.is_finished:
            shutil.rmtree(place / _CHECKPOINTS, ignore_errors=True)
        records.append(self._folder, record)
        return record

    def _prepared(self, run: Run, parts: Parts) -> str:
        """Make the parts unless they exist; return "", or the reason why they cannot be made."""
        if parts.path not in self._obstacles:
            try:
                prepare.make_graph(run, self._folder, self._how)
                prepare.make_parts(parts, self._how)
                self._obstacles[parts.path] = ""
            except HpcgnnError as error:
                self._obstacles[parts.path] = str(error)
        return self._obstacles[parts.path]
