"""The work of a run, by the kind of its study: a training, the preparation of a graph, or a bench; and the contents of its
record.

A training runs on ranks, or in PyG's one process. A preparation runs and measures `hpcgnn convert`, `partition` and `plan`,
without any file from before. A bench is `hpcgnn bench WORDS --json`, whose JSON object has `lines`. Preparations and benches
give several results each: a line has `axes`, which are added to those of the configuration, and `figures`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.lab.study import commands, prepare, records
from hpcgnn.lab.study.axes import BENCH, ENVIRONMENTS, GRAPH_WORD, HPCGNN, NATIVE, OF_PYG, PARTS_WORD, PREPARE, PYG
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.measures import LINE_AXES
from hpcgnn.lab.study.prepare import Parts
from hpcgnn.lab.study.specification import Run

_PARTITION = ("method", "objective", "cut_fraction", "edge_balance", "train_balance", "num_parts")
_PLAN = ("rows", "pairs", "bytes", "max_rows_sent", "max_rows_received")


@dataclass(frozen=True)
class Job:
    """A run that can start. parts: its parts; None if it needs none. place: an empty folder for this run."""

    run: Run
    parts: Parts | None
    place: Path
    how: Commands

    def line(self, words: list[str], *, on_ranks: bool) -> list[str]:
        """The command line of ``hpcgnn WORDS``."""
        place = self.run.place
        return self.how.on_ranks(place, words) if on_ranks else self.how.on_one(words, place.threads or 1)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that restrict the run to its instruction set."""
        return ENVIRONMENTS.get(self.run.configuration.get("isa", NATIVE), {})

    @property
    def output(self) -> Path:
        """The file of the run's output."""
        return self.place / "output.txt"


def needs_parts(run: Run) -> bool:
    """Return whether a graph must be partitioned, and planned, before the run."""
    if run.kind == BENCH:
        return any(word in run.given["bench"] for word in (PARTS_WORD, GRAPH_WORD))
    return run.kind != PREPARE


def done(job: Job) -> dict[str, Any]:
    """Run ``job``; return ``status`` and the other results for its record."""
    work: Callable[[Job], dict[str, Any]] = {BENCH: _bench, PREPARE: _preparation}.get(job.run.kind, _training)
    if job.run.configuration.get("framework", HPCGNN) == PYG:
        work = _training_by_pyg
    try:
        return {"status": records.FINISHED} | work(job)
    except (HpcgnnError, ValueError, OSError) as error:
        return {"status": records.FAILED, "error": str(error)}


# -- trainings ---------------------------------------------------------------------------------------------------------


def _training(job: Job) -> dict[str, Any]:
    assert job.parts is not None
    words = ["train", str(job.parts.path), "--out", str(job.place), "--quiet", *job.run.flags]
    if said := commands.run(job.line(words, on_ranks=True), job.output, job.environment):
        raise HpcgnnError(said)
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


def _training_by_pyg(job: Job) -> dict[str, Any]:
    assert job.parts is not None
    settings = {name: job.run.configuration[name] for name in OF_PYG if name in job.run.configuration}
    words = ["bench", "pyg", str(job.parts.graph), "--json"]
    # Without a number of threads PyG takes all cores, as our ranks divide all of them.
    words += ["--threads", str(job.run.place.threads)] if job.run.place.threads else []
    words += [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    found = commands.facts(job.line(words, on_ranks=False), job.output, job.environment)
    if "epoch_seconds_median" not in found:
        raise HpcgnnError("`hpcgnn bench pyg` ended with code 0 but printed no seconds")
    epochs, versions = found.pop("epochs", {}), found.pop("versions", {})
    return {"summary": found, "epochs": epochs, "versions": versions}


# -- benches and preparations ------------------------------------------------------------------------------------------


def _bench(job: Job) -> dict[str, Any]:
    """Run a bench; on ranks if its words name the parts."""
    words, on_ranks = shlex.split(job.run.given["bench"]), PARTS_WORD in job.run.given["bench"]
    if job.parts is not None:
        files = {PARTS_WORD: str(job.parts.path), GRAPH_WORD: str(job.parts.graph)}
        for name, path in files.items():
            words = [word.replace(name, path) for word in words]
    found = commands.facts(job.line(["bench", *words, "--json"], on_ranks=on_ranks), job.output, job.environment)
    lines = found.get("lines")
    if not isinstance(lines, list) or not all(_is_line(line) for line in lines):
        raise HpcgnnError(
            f"`hpcgnn bench {words[0]} --json` printed no lines of axes ({', '.join(LINE_AXES)}) and figures"
        )
    return {"summary": {"lines": lines}, "versions": found.get("versions", {})}


def _is_line(line: Any) -> bool:
    return isinstance(line, dict) and set(line) == {"axes", "figures"} and set(line["axes"]) <= set(LINE_AXES)


def _preparation(job: Job) -> dict[str, Any]:
    """Convert a graph from its source, partition it, and plan it; measure each step, and remove the files in the end."""
    run, how = job.run, job.how
    assert run.graph is not None
    graph, parts = run.graph.file or job.place / "graph.h5", job.place / "parts.h5"
    strategy = run.configuration.get("strategy", "hybrid")
    options = prepare.partition_flags(run)
    steps = {
        "convert": ["convert", how.located(run.graph.source), str(graph), *run.graph.options],
        "partition": ["partition", str(graph), str(parts), *options, "--plan", "none"],
        "plan": ["plan", str(parts), "--strategy", strategy, "--ranks-per-node", str(run.place.ranks_per_node)],
    }
    if run.graph.file is not None:
        del steps["convert"]
    lines = []
    try:
        for step, words in steps.items():
            output = job.place / f"{step}.txt"
            said, cost = commands.measured(how.on_one([*words, "--json"]), output)
            if said:
                raise HpcgnnError(f"{step}: {said}")
            told = commands.object_in(output)
            made = (graph if step == "convert" else parts).stat().st_size
            figures = cost | {
                "file_bytes": made,
                "memory_to_graph_size": cost["peak_memory_bytes"] / graph.stat().st_size,
            }
            kept = told.get("strategies", {}).get(strategy, {}) if step == "plan" else told
            figures |= {name: kept[name] for name in (*_PARTITION, *_PLAN) if name in kept}
            lines.append({"axes": {"step": step}, "figures": figures})
    finally:
        for path in job.place.glob("*.h5"):
            path.unlink()
    return {"summary": {"lines": lines}, "versions": {"hpcgnn": __version__}}
