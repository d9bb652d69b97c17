"""The runner of a study: it runs the configurations that have not finished on this machine, in rounds, and records each run
before and after it. A training runs on ranks, or in PyG's one process. A preparation measures `hpcgnn convert`, `partition` and
`plan`. A bench is `hpcgnn bench WORDS --json`. Both give several results: a line has `axes`, which are added to those of the
configuration, and `figures`."""

from __future__ import annotations

import json
import random
import shlex
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
from hpcgnn.base.version import __version__
from hpcgnn.lab.bench.names import SAR
from hpcgnn.lab.study import axes, commands, prepare, records
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.measures import LINE_AXES
from hpcgnn.lab.study.prepare import Parts
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import Run, Specification
from hpcgnn.lab.virtual import cluster as virtual_cluster
from hpcgnn.launch import mpiexec

RUNS = "runs"
_NOT_OF_RUNS = ("report", "about")  # tables that may change in the specification of a study that has begun
_FIGURES_OF_STEPS = ("method", "objective", "cut_fraction", "edge_balance", "train_balance", "num_parts", "rows", "pairs",
                     "bytes", "max_rows_sent", "max_rows_received")  # fmt: skip


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
    """Make the folder of a study, with its specification in it. Raises HpcgnnError if the folder belongs to another study, holds
    other files, or cannot be made."""
    path = folder / records.SPECIFICATION
    if path.exists():
        old, new = (tomllib.loads(text) for text in (typed.text_of(path), specification.text))
        if any(old.get(name) != new.get(name) for name in (old.keys() | new.keys()) - {*_NOT_OF_RUNS}):
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


def order(runs: Iterable[Run]) -> list[Run]:
    """The runs in rounds of all configurations with one repeat and seed, each beginning at a configuration drawn at random."""
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
    specification: Specification, folder: Path, how: Commands, listener: Listener, only: Collection[str] = ()
) -> Outcome:
    """Run all runs that are missing, or those with a key in ``only``; a run that fails is recorded, and the others go on. Raises
    HpcgnnError if no run can start, because all need virtual hosts that this machine cannot have, and for an unknown key."""
    path = specification.path
    if unknown := sorted(set(only) - {run.key for run in specification.runs}):
        raise HpcgnnError(f"{path} has no run {unknown[0]}: `hpcgnn study list {path}` shows its keys")
    wanted = [run for run in missing(specification, folder) if not only or run.key in only]
    no_hosts = "" if how.launcher else _why_no_hosts(wanted)
    if no_hosts and all(run.place.hosts for run in wanted):
        raise HpcgnnError(no_hosts)
    prepare.check_parts(filter(_needs_parts, wanted))
    runner = _Runner(
        folder, how, listener, prepare.parts_of(folder, filter(_needs_parts, specification.runs)), no_hosts
    )
    outcomes = [runner.run(run) for run in wanted]
    return Outcome(*(outcomes.count(what) for what in (records.FINISHED, records.FAILED, records.STARTED)))


def _why_no_hosts(runs: Iterable[Run]) -> str:
    """The reason why this machine cannot have the virtual hosts that some of the runs need; "" if there is none."""
    try:
        if any(run.place.hosts for run in runs):
            virtual_cluster.check_rights()
            mpiexec.command(1, 1, mpiexec.Placing(virtual=True))
    except HpcgnnError as error:
        return str(error)
    return ""


def _needs_parts(run: Run) -> bool:
    """Return whether a graph must be partitioned, and planned, before the run."""
    return axes.names_files(run.given["bench"]) if run.kind == axes.BENCH else run.kind != axes.PREPARE


class _Runner:
    """Executes runs in one folder. A graph or a partition that cannot be made is tried only once. no_hosts: the reason why runs
    on virtual hosts fail."""

    def __init__(self, folder: Path, how: Commands, listener: Listener, parts: dict[str, Parts], no_hosts: str) -> None:
        self._folder, self._how, self._listener, self._parts = folder, how, listener, parts
        self._no_hosts = no_hosts
        self._machine = records.machine_facts()
        self._obstacles: dict[Path, str] = {}

    def run(self, run: Run) -> str:
        """Do one run from its start, and return its status; ``started`` if another runner does it."""
        status, lock = records.STARTED, self._folder / RUNS / f".{run.key}.lock"
        with prepare.locked(lock, waits=False) as is_mine:
            if not is_mine:
                self._listener.note(f"{run.key} is run by another process: left to it")
            # Another runner may have finished it since this one made its list of missing runs.
            elif run.key not in records.finished_keys(self._folder, self._machine["id"]):
                record = self._tried(run)
                status = record.status
                records.append(self._folder, record)
                if status == records.FAILED:
                    self._listener.note(f"{run.key} failed: {record.error}")
        self._listener.advance(1)
        return status

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
        if said := self._obstacle(run, parts):
            return replace(record, status=records.FAILED, error=said)
        records.append(self._folder, record)
        shutil.rmtree(place, ignore_errors=True)  # a failed attempt may have left files
        place.mkdir(parents=True)
        began = time.perf_counter()
        found = _done(_Job(run, parts, place, self._how))
        preparation = typed.read_json(parts.facts_path, dict[str, Any]) if parts else {}
        record = replace(record, wall_seconds=time.perf_counter() - began, preparation=preparation, **found)
        if record.is_finished:
            shutil.rmtree(place / "checkpoints", ignore_errors=True)
        return record

    def _obstacle(self, run: Run, parts: Parts | None) -> str:
        """The reason why a run cannot start, once its parts have been made; "" if there is none."""
        if run.place.hosts and self._no_hosts:
            return self._no_hosts
        return self._prepared(run, parts) if parts else ""

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


# -- the work of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A run that can start. parts: its parts; None if it needs none. place: an empty folder for this run."""

    run: Run
    parts: Parts | None
    place: Path
    how: Commands

    def told(self, words: list[str], *, on_ranks: bool) -> dict[str, Any]:
        """Run ``hpcgnn WORDS``; return the JSON object that it prints, or {}."""
        place, environment = self.run.place, axes.ENVIRONMENTS.get(self.run.configuration.get("isa", axes.NATIVE), {})
        line = self.how.on_ranks(place, words) if on_ranks else self.how.on_one(words, place.threads or 1)
        return commands.facts(line, self.place / "output.txt", environment)


def _done(job: _Job) -> dict[str, Any]:
    """Do the work; return ``status`` and the other results for its record."""
    by_peer = job.run.configuration.get("framework", axes.HPCGNN) != axes.HPCGNN
    usual = _training_by_peer if by_peer else _training
    try:
        work = {axes.BENCH: _bench, axes.PREPARE: _preparation}.get(job.run.kind, usual)
        return {"status": records.FINISHED} | work(job)
    except (HpcgnnError, ValueError, OSError) as error:
        return {"status": records.FAILED, "error": str(error)}


def _training(job: _Job) -> dict[str, Any]:
    assert job.parts is not None
    words = ["train", str(job.parts.path), "--out", str(job.place), "--quiet", *job.run.flags]
    job.told(words, on_ranks=True)
    try:
        summary = typed.read_json(job.place / "summary.json", dict[str, Any])
        lines = [json.loads(line) for line in typed.text_of(job.place / "metrics.jsonl").splitlines()]
    except (HpcgnnError, ValueError) as error:
        raise HpcgnnError(f"the run ended with code 0 but left no result: {error}") from error
    if not summary.get("finished", True):
        raise HpcgnnError(f"it stopped before its end ({summary.get('stop_reason')})")
    names = dict.fromkeys(name for line in lines for name in line if name != "policy")
    epochs = {name: [line.get(name) for line in lines] for name in names}
    return {"summary": summary, "epochs": epochs, "versions": summary.get("versions", {})}


def _training_by_peer(job: _Job) -> dict[str, Any]:
    assert job.parts is not None
    run, framework = job.run, job.run.configuration["framework"]
    names = (*axes.OF_PEER, *axes.OF_SAMPLING)
    settings = {name: run.configuration[name] for name in names if name in run.configuration}
    # Without a number of threads the library's processes divide all cores, as our ranks do.
    settings |= {"threads": run.place.threads} if run.place.threads else {}
    settings |= {name: value for name, value in job.how.of_peer(framework).items() if value}
    if framework == SAR:
        if job.how.launcher:
            raise HpcgnnError("SAR is measured on the ranks and virtual hosts of one machine: leave out --launcher")
        place = {"ranks": run.place.ranks, "hosts": run.place.hosts, "rate": run.place.rate}
        settings = {name: value for name, value in (settings | place).items() if name != "device"}
    words = ["bench", framework, str(job.parts.graph), "--json"]
    words += [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    found = job.told(words, on_ranks=False)
    if "epoch_seconds_median" not in found:
        raise HpcgnnError(f"`hpcgnn bench {framework}` ended with code 0 but printed no seconds")
    epochs, versions = found.pop("epochs", {}), found.pop("versions", {})
    return {"summary": found, "epochs": epochs, "versions": versions}


def _bench(job: _Job) -> dict[str, Any]:
    """Run a bench; on ranks if its words name the parts, except for benches that measure all ranks in one process."""
    words = shlex.split(job.run.given["bench"])
    on_ranks = axes.PARTS_WORD in job.run.given["bench"] and words[0] not in axes.ON_ONE
    if job.parts is not None:
        parts, graph = str(job.parts.path), str(job.parts.graph)
        words = [word.replace(axes.PARTS_WORD, parts).replace(axes.GRAPH_WORD, graph) for word in words]
    found = job.told(["bench", *words, "--json"], on_ranks=on_ranks)
    lines: Any = found.get("lines")
    if typed.why_invalid(lines, list[records.Line]) or any(set(line["axes"]) - set(LINE_AXES) for line in lines):
        said = f"printed no lines of axes ({', '.join(LINE_AXES)}) and figures"
        raise HpcgnnError(f"`hpcgnn bench {words[0]} --json` {said}")
    return {"summary": {"lines": lines}, "versions": found.get("versions", {})}


def _preparation(job: _Job) -> dict[str, Any]:
    """Convert a graph from its source, partition it, and plan it; measure each step, and remove the files in the end."""
    run, how = job.run, job.how
    assert run.graph is not None
    graph, parts = run.graph.file or job.place / "graph.h5", job.place / "parts.h5"
    strategy = run.configuration.get("strategy", "hybrid")
    steps = [
        ["convert", how.located(run.graph.source), str(graph), *run.graph.options],
        ["partition", str(graph), str(parts), *prepare.partition_flags(run), "--plan", "none"],
        ["plan", str(parts), "--strategy", strategy, "--ranks-per-node", str(run.place.ranks_per_node)],
    ]
    lines = []
    try:
        for words in steps if run.graph.file is None else steps[1:]:
            step = words[0]
            output = job.place / f"{step}.txt"
            said, figures = commands.measured(how.on_one([*words, "--json"]), output)
            if said:
                raise HpcgnnError(f"{step}: {said}")
            figures["file_bytes"] = (graph if step == "convert" else parts).stat().st_size
            figures["memory_to_graph_size"] = figures["peak_memory_bytes"] / graph.stat().st_size
            told = commands.object_in(output)
            facts = told.get("strategies", {}).get(strategy, {}) if step == "plan" else told
            figures |= {name: facts[name] for name in _FIGURES_OF_STEPS if name in facts}
            lines.append({"axes": {"step": step}, "figures": figures})
    finally:
        for path in job.place.glob("*.h5"):
            path.unlink()
    return {"summary": {"lines": lines}, "versions": {"hpcgnn": __version__}}
