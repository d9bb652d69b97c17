"""Graphs and parts of a study, each made once. A parts file gets the plans of all strategies that the study needs, and is never
changed afterwards, so that runs may read it while another runner prepares other files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.whole_file import lock
from hpcgnn.data.digests import differences
from hpcgnn.data.graph_file import GraphFile, PartsFile
from hpcgnn.data.h5 import HDF5, begins_with
from hpcgnn.lab.study import commands
from hpcgnn.lab.study.axes import GraphSource, plan_of
from hpcgnn.lab.study.commands import Commands
from hpcgnn.lab.study.records import short_hash
from hpcgnn.lab.study.specification import Run
from hpcgnn.partition.options import check_num_parts
from hpcgnn.plan.relations import BY_TYPE

GRAPHS, PARTS = "graphs", "parts"


@dataclass(frozen=True)
class Parts:
    """The parts file of a run. plans: the names of the plans that are counted; those of strategies are stored."""

    path: Path
    graph: Path
    options: tuple[str, ...]
    per_node: int
    plans: tuple[str, ...]

    @property
    def facts_path(self) -> Path:
        """The file with the output of ``hpcgnn partition`` and ``plan``."""
        return self.path.with_suffix(".json")


def parts_of(folder: Path, runs: Iterable[Run]) -> dict[str, Parts]:
    """The parts of each run with a graph, by its key; runs share parts where they can."""
    shared: dict[Path, Parts] = {}
    places: dict[str, Path] = {}
    for run in runs:
        if run.graph is None:
            continue
        path = places[run.key] = folder / PARTS / _parts_name(run, run.graph)
        graph = run.graph.file or folder / GRAPHS / f"{run.graph.name}.h5"
        parts = shared.get(path) or Parts(path, graph, partition_flags(run), run.place.ranks_per_node, ())
        shared[path] = replace(parts, plans=tuple(sorted(filter(None, {*parts.plans, plan_of(run.configuration)}))))
    return {key: shared[path] for key, path in places.items()}


def check_parts(runs: Iterable[Run]) -> None:
    """Raise HpcgnnError if a run has more ranks than its graph file has nodes. A graph that is yet to be converted is checked
    when it is partitioned, and a file that cannot be read is told then, too."""
    for path, ranks in sorted({(run.graph.file, run.place.ranks) for run in runs if run.graph and run.graph.file}):
        nodes = ranks
        with contextlib.suppress(HpcgnnError), GraphFile(path) as graph:
            nodes = graph.meta.num_nodes
        check_num_parts(path, nodes, ranks)


def partition_flags(run: Run) -> tuple[str, ...]:
    """The flags of ``partition`` for a run."""
    place, axes = run.place, run.configuration
    flags = ["--parts", str(place.ranks), "--method", axes["partitioner"], "--objective", axes["objective"]]
    flags += ["--balance", axes["balance"]]
    flags += ["--ranks-per-node", str(place.ranks_per_node)] if place.nodes > 1 and place.ranks_per_node > 1 else []
    return tuple(flags)


def _parts_name(run: Run, graph: GraphSource) -> str:
    """The name of a parts file, which contains the graph and the options of the partition."""
    label = f"{graph.name}-{run.place.ranks}-{run.configuration['partitioner']}-{run.configuration['objective']}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', label)}-{short_hash(list(partition_flags(run)))}.h5"


def make_graph(run: Run, folder: Path, how: Commands) -> Path:
    """The graph file of a run, converted from its source unless it exists. Raises HpcgnnError if that fails."""
    assert run.graph is not None
    if run.graph.file is not None:
        return run.graph.file
    path = folder / GRAPHS / f"{run.graph.name}.h5"
    with _made_once(path) as pieces:
        if pieces is not None:
            made = pieces / "graph.h5"
            words = ["convert", how.located(run.graph.source), str(made), *run.graph.options, "--json"]
            _said(f"graph {run.configuration['graph']}", how.on_one(words), pieces)
            whole_file.put(made, path)
    return path


def make_parts(parts: Parts, how: Commands) -> None:
    """Partition a graph and make the plans, unless they exist. Raises HpcgnnError if that fails, or the graph is another one."""
    with _made_once(parts.path) as pieces:
        if pieces is None:
            _check_graph(parts)
            return
        made = pieces / "parts.h5"
        words = ["partition", str(parts.graph), str(made), *parts.options, "--plan", "none", "--json"]
        partitioned = _said(f"partition {parts.path.name}", how.on_one(words), pieces)
        partitioned.pop("output", None)
        plans = {}
        for name in parts.plans:
            strategy = name.removesuffix(BY_TYPE)
            words = ["plan", str(made), "--strategy", strategy, "--ranks-per-node", str(parts.per_node), "--json"]
            words += [] if strategy == name else ["--edge-types", "sum"]  # of sage; all such models have the same plan
            planned = _said(f"plan {parts.path.name}", how.on_one(words), pieces)
            plans[name] = planned.get("strategies", {}).get(name, {})
        with whole_file.replacing(parts.facts_path) as temporary:
            temporary.write_text(json.dumps({"partition": partitioned, "plan": plans}, indent=1) + "\n")
        whole_file.put(made, parts.path)


def _check_graph(parts: Parts) -> None:
    """Raise HpcgnnError if the graph file has other data than when its parts were made. It may be gone: nothing needs it."""
    if not parts.graph.is_file() or not (begins_with(parts.graph, HDF5) and begins_with(parts.path, HDF5)):
        return
    with GraphFile(parts.graph, sealed=False) as graph, PartsFile(parts.path, sealed=False) as made:
        differing = differences(graph.data, made.data)
    if differing:
        raise HpcgnnError(
            f"{parts.path} was made of another graph than {parts.graph} now holds, which differs in {differing}: choose another "
            "--out for a study of the new graph"
        )


def _said(what: str, line: list[str], pieces: Path) -> dict[str, Any]:
    try:
        return commands.facts(line, pieces / "output.txt")
    except HpcgnnError as error:
        raise HpcgnnError(f"{what}: {error}") from error


@contextlib.contextmanager
def _made_once(path: Path) -> Iterator[Path | None]:
    """An empty folder in which to make ``path``, while other processes that need it wait; None if it exists already."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with whole_file.temporary_folder(path) as pieces:
                    yield pieces
                return
    yield None


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, and yield True; or False if another process holds it and this one does not wait. Raises
    HpcgnnError if the file cannot be written."""
    try:
        stream = path.open("a")
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {error.strerror}") from error
    with stream:
        yield lock(stream, waits=waits)  # without locks in the file system, one runner may run at a time
